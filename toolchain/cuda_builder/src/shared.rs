//! Statics in shared memory. rustc has no address spaces, so `#[address_space(shared)]` leaves a static in global memory, which only
//! inline PTX names, and a place, which Rust names.

use crate::items::declared_name;
use crate::ptx::PtxError;

const STATIC: &str = "__shared_static_";
const PLACE: &str = "__shared_place_";

/// Moves the statics to shared memory, and leaves out the places.
///
/// # Errors
/// [`PtxError::SharedAddress`] if a kernel has a place's address.
pub(crate) fn place(raw: &str) -> Result<String, PtxError> {
    if !raw.contains(STATIC) {
        return Ok(raw.to_owned());
    }
    let declares = |line: &str, prefix: &str| {
        line.contains(".global ") && line.ends_with(';') && declared_name(line).starts_with(prefix)
    };
    let mut text = String::with_capacity(raw.len());
    for line in raw.lines() {
        let is_comment = line.trim_start().starts_with("//");
        if declares(line, PLACE) {
            continue;
        }
        if let (false, Some((_, name))) = (is_comment, line.split_once(PLACE)) {
            let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
            let name = name.split(|c| !is_part(c)).next().unwrap_or(name);
            return Err(PtxError::SharedAddress(name.to_owned()));
        }
        if declares(line, STATIC) {
            // shared memory is the block's: no other module names it, and it has no value at first
            let line = line.replacen(".global ", ".shared ", 1);
            text.push_str(line.strip_prefix(".visible ").unwrap_or(&line));
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: &str = "\
	// .globl	__shared_place_k_0_TILE
.visible .global .align 4 .b8 __shared_static_k_0_TILE[1024];
.visible .global .align 1 .b8 __shared_place_k_0_TILE[1];
.visible .global .align 4 .u32 count;
.visible .entry k()
{
	cvta.shared.u64 %rd1, __shared_static_k_0_TILE;
}
";

    #[test]
    fn toolchain_statics_are_moved_and_their_places_go() {
        let text = place(RAW).unwrap();
        assert!(text.contains("\n.shared .align 4 .b8 __shared_static_k_0_TILE[1024];\n"), "{text}");
        assert!(!text.contains(".b8 __shared_place"), "{text}");
        assert!(text.contains(".visible .global .align 4 .u32 count;"), "other statics stay: {text}");
    }

    #[test]
    fn toolchain_an_address_that_is_no_shared_memory_is_an_error() {
        let raw = RAW.replace("}\n", "\tmov.b64 \t%rd2, __shared_place_k_0_TILE;\n}\n");
        assert_eq!(place(&raw), Err(PtxError::SharedAddress("k_0_TILE".to_owned())));
    }
}
