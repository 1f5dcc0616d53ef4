//! The pictures and videos of a request: inline, or fetched from an address.
//!
//! A server that fetches addresses given by strangers can be made to fetch from its own network (SSRF). So a host must be
//! allowed by name, and none of its addresses may be private: the name is resolved once, all its addresses are checked, and
//! the connection goes to exactly these. A redirection is a new address with the same checks.

use super::error::ApiError;
use super::fields::Fields;
use super::lanes::Wanted;
use super::limits::Limits;
use super::videos::{Frames, MAX_FRAMES};
use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD, STANDARD_NO_PAD};
use qwen3_vl::Visual;
use qwen3_vl::media::PixelLimits;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};
use url::{Host, Url};

type Result<T> = std::result::Result<T, ApiError>;

/// The most redirections.
const MAX_REDIRECTS: usize = 3;
/// The longest time for fetching a picture.
const MAX_TIME: Duration = Duration::from_secs(20);

/// The pictures and videos of a request, in order.
pub(crate) type Pictures = Vec<Asked>;

/// A picture or video of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    /// The path of its field.
    pub param: String,
    pub source: Source,
    /// The pixels that it is resized to, where the request says so.
    pub pixels: PixelLimits,
    /// The frames that are seen of a video; `None` for a picture.
    pub frames: Option<Frames>,
}

/// The limits of pixels that a part or a request asks for, as Qwen's processor takes them. The server's most is kept.
pub(crate) fn pixel_limits(fields: &Fields, limits: &Limits) -> Result<PixelLimits> {
    const MOST: usize = 1 << 40;
    let most = limits.resized_pixels;
    let [min, max] = ["min_pixels", "max_pixels"].map(|name| fields.whole(name, 1, MOST));
    let (min, max) = (min?, max?);
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        let path = fields.path("min_pixels");
        return Err(ApiError::invalid(path.clone(), format!("{path} is {min}, above max_pixels = {max}")));
    }
    Ok(PixelLimits { min: min.map(|min| min.min(most)), max: max.map(|max| max.min(most)), most: None })
}

/// Gives pictures the limits of pixels of the whole request, and videos its frames, where their parts are open: as Qwen's own processor
/// takes them, and as servers pass them on to it. `usual` limits are taken where the request is open too.
pub(crate) fn bound<'a>(
    fields: &Fields,
    pictures: impl Iterator<Item = &'a mut Asked>,
    limits: &Limits,
    usual: PixelLimits,
) -> Result<()> {
    let passed = fields.object("mm_processor_kwargs")?;
    let passed = passed.map(|passed| pixel_limits(&passed, limits)).transpose()?.unwrap_or_default();
    let (all, frames) = (pixel_limits(fields, limits)?.or(passed).or(usual), Frames::for_all(fields)?);
    for asked in pictures {
        asked.pixels = asked.pixels.or(all);
        asked.frames = asked.frames.map(|asked| asked.or(frames));
    }
    Ok(())
}

/// The source of a picture or video.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// The file.
    Here(Vec<u8>),
    /// A video's frames, each a picture's file.
    Frames(Vec<Vec<u8>>),
    /// An address whose host is allowed.
    Elsewhere(Url),
}

impl Source {
    /// Reads an `image_url` or a `video_url`. A data URL of `video/jpeg` is a video whose frames, as vLLM has it, are joined by
    /// commas.
    pub fn read(param: &str, url: &str, limits: &Limits) -> Result<Self> {
        let refuse = |reason: &str| ApiError::invalid(param, format!("{param} {reason}"));
        if let Some(data) = strip_prefix_ignoring_case(url, "data:") {
            let (kind, data) = data.split_once(',').ok_or_else(|| refuse("is a data URL without data"))?;
            if !kind.to_ascii_lowercase().ends_with(";base64") {
                return Err(refuse("is a data URL that is not base64"));
            }
            let decode = |data: &str| {
                let data = data.trim();
                let engine: &GeneralPurpose = if data.ends_with('=') { &STANDARD } else { &STANDARD_NO_PAD };
                engine.decode(data).map_err(|error| refuse(&format!("is not valid base64: {error}")))
            };
            return Ok(match strip_prefix_ignoring_case(kind, "video/jpeg") {
                Some(_) => Self::Frames(data.split(',').map(decode).collect::<Result<_>>()?),
                None => Self::Here(decode(data)?),
            });
        }
        let url = Url::parse(url).map_err(|error| refuse(&format!("is not a valid address: {error}")))?;
        check(&url, limits).map_err(|reason| refuse(&reason))?;
        Ok(Self::Elsewhere(url))
    }

    /// The decoded video, of at most [`Limits::video_bytes`] of frames. Reading it takes some frames besides.
    pub fn video(self, param: &str, frames: Frames, limits: &Limits, wanted: &Wanted) -> Result<Visual> {
        let (sampling, most) = (frames.sampling(), limits.video_bytes());
        let goes_on = || wanted.is_so();
        Ok(match self {
            Self::Frames(files) if files.len() > MAX_FRAMES => {
                let message = format!("{param} has {} frames; a video may have {MAX_FRAMES}", files.len());
                return Err(ApiError::invalid(param, message));
            }
            Self::Frames(files) => {
                Visual::video_of_pictures(param, &files, sampling.rate, limits.pixels, most, &goes_on)?
            }
            source => {
                let file = source.fetch(param, limits, wanted)?;
                Visual::video_while(param, &file, &sampling, most, limits.reads_video_files, &goes_on)?
            }
        })
    }

    /// The error for a video where a picture is shown.
    pub fn no_picture(param: &str) -> ApiError {
        ApiError::invalid(param, format!("{param} is a video, and no picture"))
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Here(file) => file.len(),
            Self::Frames(files) => files.iter().map(|file| file.len() + size_of::<Vec<u8>>()).sum(),
            Self::Elsewhere(url) => url.as_str().len(),
        }
    }

    /// The file's bytes. Takes up to [`MAX_TIME`], and memory for a body.
    pub fn fetch(self, param: &str, limits: &Limits, wanted: &Wanted) -> Result<Vec<u8>> {
        match self {
            Self::Here(file) => Ok(file),
            Self::Frames(_) => Err(Self::no_picture(param)),
            Self::Elsewhere(url) => {
                fetch(url, limits.body, &|url| check(url, limits), &|| wanted.is_so(), &|_, address| {
                    is_public(address)
                })
                .map_err(|reason| ApiError::invalid(param, format!("{param} can't be fetched: {reason}")))
            }
        }
    }
}

fn strip_prefix_ignoring_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Checks an address by its text alone.
fn check(url: &Url, limits: &Limits) -> std::result::Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("is an address with {}:; it may have data:, http: or https:", url.scheme()));
    }
    if limits.image_hosts.is_empty() {
        return Err(
            "is an address, and this server fetches no pictures; send the picture as a data URL".into()
        );
    }
    let host = url.host_str().unwrap_or_default();
    let with_port = url.port().map(|port| format!("{host}:{port}"));
    let is_allowed = |allowed: &String| allowed.eq_ignore_ascii_case(with_port.as_deref().unwrap_or(host));
    match limits.image_hosts.iter().any(is_allowed) && url.username().is_empty() && url.password().is_none() {
        true => Ok(()),
        false => Err(format!("is at {host}, from which this server does not fetch")),
    }
}

/// Fetches the picture that a user of this machine names. The address may be private, as the user has named it; what it
/// redirects to must be at the same host or public.
///
/// # Errors
/// A sentence.
pub fn fetch_picture(address: &str, most_bytes: usize) -> std::result::Result<Vec<u8>, String> {
    let url = Url::parse(address).map_err(|error| format!("it is not a valid address: {error}"))?;
    let named = url.host_str().map(str::to_owned);
    let may = |url: &Url| match matches!(url.scheme(), "http" | "https") {
        true => Ok(()),
        false => Err(format!("it is at an address with {}:", url.scheme())),
    };
    let is_allowed = |url: &Url, address| url.host_str() == named.as_deref() || is_public(address);
    fetch(url, most_bytes, &may, &|| true, &is_allowed)
}

/// Fetches a file of up to `most_bytes`. `may` decides about addresses, `is_allowed` about the IP addresses of one.
fn fetch(
    mut url: Url,
    most_bytes: usize,
    may: &dyn Fn(&Url) -> std::result::Result<(), String>,
    goes_on: &dyn Fn() -> bool,
    is_allowed: &dyn Fn(&Url, IpAddr) -> bool,
) -> std::result::Result<Vec<u8>, String> {
    let deadline = Instant::now() + MAX_TIME;
    for _ in 0..=MAX_REDIRECTS {
        if !goes_on() {
            return Err("nobody waits for it".into());
        }
        may(&url)?;
        let addresses = resolve(&url, |address| is_allowed(&url, address))?;
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let agent = ureq::AgentBuilder::new()
            .resolver(move |_: &str| Ok(addresses.clone()))
            .redirects(0)
            .timeout(left)
            .user_agent(concat!("pascaline/", env!("CARGO_PKG_VERSION")))
            .build();
        let answer = match agent.request_url("GET", &url).call() {
            Ok(answer) => answer,
            Err(ureq::Error::Status(status, _)) => return Err(format!("its server answers {status}")),
            Err(ureq::Error::Transport(error)) => return Err(error.kind().to_string()),
        };
        if (300..400).contains(&answer.status()) {
            let location = answer.header("location").ok_or("its redirection has no Location header")?;
            url = url
                .join(location)
                .map_err(|error| format!("its redirection has no valid address: {error}"))?;
            continue;
        }
        let mut file = Vec::new();
        let mut body = answer.into_reader().take(most_bytes as u64 + 1);
        let mut piece = vec![0; 1 << 16];
        loop {
            let count = body.read(&mut piece).map_err(|error| error.to_string())?;
            match count {
                0 => break,
                _ if !goes_on() => return Err("nobody waits for it".into()),
                _ => file.extend_from_slice(&piece[..count]),
            }
        }
        return match file.len() > most_bytes {
            true => Err(format!("it has more than {}", pascaline::format_bytes(most_bytes))),
            false => Ok(file),
        };
    }
    Err(format!("it is redirected more than {MAX_REDIRECTS} times"))
}

/// The IP addresses of a host, all of which must be allowed.
fn resolve(url: &Url, is_allowed: impl Fn(IpAddr) -> bool) -> std::result::Result<Vec<SocketAddr>, String> {
    let port = url.port_or_known_default().ok_or("it has no port")?;
    let addresses: Vec<SocketAddr> = match url.host() {
        Some(Host::Ipv4(address)) => vec![(address, port).into()],
        Some(Host::Ipv6(address)) => vec![(address, port).into()],
        Some(Host::Domain(name)) => {
            let found = (name, port).to_socket_addrs().map_err(|_| "its host has no address")?;
            found.collect()
        }
        None => Vec::new(),
    };
    if addresses.is_empty() {
        return Err("its host has no address".into());
    }
    match addresses.iter().all(|address| is_allowed(address.ip())) {
        true => Ok(addresses),
        false => Err("its host's address is not public".into()),
    }
}

/// Whether an address is public, and not of this machine or its network, or reserved.
///
/// Source: IANA's registries of special-purpose addresses for IPv4 and IPv6.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let benchmarks = a == 198 && (18..20).contains(&b);
    let special = (a, b, c) == (192, 0, 0) || (a, b, c) == (192, 88, 99);
    !(a == 0
        || a >= 224 // multicast, reserved, broadcast
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || shared
        || benchmarks
        || special)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match [a, b, c, d, e, f] {
        // IPv4-mapped and translated addresses
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => v4(g, h),
        [0x2002, ..] => v4(b, c),
        // global unicast, without Teredo, ORCHID and other protocols' addresses, and documentation
        [0x2001, 0..0x200, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..0x1000, ..] => false,
        _ => (0x2000..0x4000).contains(&a),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;
    use std::thread;

    fn limits(hosts: &[&str]) -> Limits {
        let image_hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        Limits { image_hosts, ..Limits::for_context(64) }
    }

    #[test]
    fn only_public_addresses_are_public() {
        for address in [
            "8.8.8.8",
            "1.1.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "127.0.0.1",
            "127.255.0.1",
            "100.64.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "3fff::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn addresses_are_refused_by_their_text() {
        let read =
            |url: &str, hosts: &[&str]| Source::read("url", url, &limits(hosts)).map_err(|e| e.message);
        assert!(read("http://a.example/x.png", &["a.example"]).is_ok());
        assert!(read("https://A.example/x.png", &["a.example"]).is_ok());
        assert!(read("http://a.example:8000/", &["a.example:8000"]).is_ok());
        for (url, hosts) in [
            ("http://a.example/x.png", &[][..]),
            ("http://b.example/x.png", &["a.example"]),
            ("http://a.example:8000/", &["a.example"]),
            ("http://a.example@b.example/", &["a.example"]),
            ("http://user:word@a.example/", &["a.example"]),
            ("http://b.a.example/", &["a.example"]),
            ("ftp://a.example/", &["a.example"]),
            ("file:///etc/passwd", &[]),
            ("/etc/passwd", &[]),
            ("", &[]),
            ("data:image/png;base64", &[]),
            ("data:image/png,abc", &[]),
            ("data:image/png;base64,****", &[]),
        ] {
            assert!(read(url, hosts).is_err(), "{url}");
        }
        assert_eq!(read("DATA:image/png;BASE64,aGk=", &[]), Ok(Source::Here(b"hi".into())));
        assert_eq!(read("data:;base64,aGk", &[]), Ok(Source::Here(b"hi".into())));
        assert_eq!(read("data:;base64, aGk=\n", &[]), Ok(Source::Here(b"hi".into())));
        let frames = vec![b"hi".to_vec(), b"ho".to_vec()];
        assert_eq!(read("data:video/jpeg;base64,aGk=,aG8", &[]), Ok(Source::Frames(frames)));
        assert!(read("data:image/jpeg;base64,aGk=,aG8", &[]).is_err());
    }

    /// A server on this machine that gives each of its answers once.
    fn serve(answers: Vec<String>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        port
    }

    #[test]
    fn this_machine_is_never_asked() {
        let port = serve(Vec::new());
        for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"] {
            let url = Url::parse(&format!("http://{host}:{port}/x.png")).unwrap();
            let allowed = format!("{}:{port}", url.host_str().unwrap());
            let limits = limits(&[&allowed]);
            let public = |_: &Url, address| is_public(address);
            let reason = fetch(url, 1 << 20, &|url| check(url, &limits), &|| true, &public).unwrap_err();
            assert!(reason.contains("not public") || reason.contains("no address"), "{host}: {reason}");
        }
    }

    #[test]
    fn a_user_may_name_this_machine_but_no_other_host_may_lead_to_it() {
        let file = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned();
        let port = serve(vec![file]);
        assert_eq!(fetch_picture(&format!("http://127.0.0.1:{port}/x.png"), 5), Ok(b"hello".into()));
        let to =
            "HTTP/1.1 302 Found\r\nLocation: http://localhost:1/\r\nContent-Length: 0\r\n\r\n".to_owned();
        let port = serve(vec![to]);
        let reason = fetch_picture(&format!("http://127.0.0.1:{port}/x.png"), 5).unwrap_err();
        assert!(reason.contains("not public") || reason.contains("no address"), "{reason}");
        assert!(fetch_picture("ftp://a.example/x.png", 5).unwrap_err().contains("ftp:"));
    }

    #[test]
    fn files_and_redirections_are_bounded() {
        let here = |_: &Url, address: IpAddr| address.is_loopback();
        let get = |answers: Vec<String>, limit: usize| {
            let port = serve(answers);
            let url = Url::parse(&format!("http://127.0.0.1:{port}/x.png")).unwrap();
            let limits = limits(&[&format!("127.0.0.1:{port}")]);
            fetch(url, limit, &|url| check(url, &limits), &|| true, &here)
        };
        let file = || "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned();
        let to =
            |place: &str| format!("HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(get(vec![file()], 5), Ok(b"hello".into()));
        assert!(get(vec![file()], 4).unwrap_err().contains("more than"));
        assert!(get(vec!["HTTP/1.1 200 OK\r\n\r\nendless".into()], 4).unwrap_err().contains("more than"));
        assert_eq!(get(vec![to("/y.png"), file()], 5), Ok(b"hello".into()));
        assert!(get(vec![to("/y.png"); 4], 5).unwrap_err().contains("more than 3 times"));
        assert!(get(vec![to("http://127.0.0.1:1/")], 5).unwrap_err().contains("does not fetch"));
        assert!(get(vec![to("file:///etc/passwd")], 5).unwrap_err().contains("file:"));
        assert!(
            get(vec!["HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into()], 5)
                .unwrap_err()
                .contains("404")
        );
    }
}
