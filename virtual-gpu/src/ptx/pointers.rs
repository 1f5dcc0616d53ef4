//! The functions that calls by pointer may reach.

use std::collections::HashMap;

use super::inst::{CallSite, Init};
use super::{Module, Pointer, PtxError};

/// Marks the functions whose address is an operand or in an initialiser.
pub(super) fn mark(m: &mut Module) -> Result<(), PtxError> {
    let in_code = m.functions.iter().flat_map(|f| &f.inits).filter_map(|&(_, _, init)| match init {
        Init::Function(id) => Some(id),
        _ => None,
    });
    let in_data = m.variables.iter().flat_map(|v| &v.relocs).filter_map(|&(_, pointer)| match pointer {
        Pointer::Function(id) => Some(id),
        Pointer::Variable(..) => None,
    });
    for id in in_code.chain(in_data).collect::<Vec<_>>() {
        let f = &mut m.functions[id as usize];
        if !f.defined {
            let reason = format!("the address of function `{}` is taken, but it is defined nowhere", f.name);
            return Err(PtxError::new(1, reason));
        }
        f.address_taken = true;
    }
    Ok(())
}

/// The bytes of a function's parameters and results, by which calls by pointer are matched with functions: what offsets they
/// have is the function's matter.
type Bytes = (Vec<u32>, Vec<u32>);

/// By their bytes, the functions that may be called by pointer.
pub(super) struct Candidates(HashMap<Bytes, Vec<u32>>);

impl Candidates {
    /// Of a module that is marked.
    pub fn new(m: &Module) -> Self {
        let mut by_bytes: HashMap<Bytes, Vec<u32>> = HashMap::new();
        for (id, f) in m.functions.iter().enumerate().filter(|(_, f)| f.address_taken) {
            let bytes = |places: &[(u32, u32)]| places.iter().map(|place| place.1).collect();
            let key = (bytes(&f.signature.formals), bytes(&f.signature.returns));
            by_bytes.entry(key).or_default().push(id as u32);
        }
        Self(by_bytes)
    }

    /// Those that a call may reach.
    pub fn of(&self, site: &CallSite) -> &[u32] {
        let formals = site.args.iter().map(|arg| arg.2).collect();
        let returns = site.rets.iter().map(|ret| ret.2).collect();
        self.0.get(&(formals, returns)).map_or(&[], Vec::as_slice)
    }
}
