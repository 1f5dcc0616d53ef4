//! Requests to a hub: redirects, the token, time limits and the ends of bodies. No answer is trusted.

use std::io::{self, Read};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use ureq::{Agent, Response};
use url::Url;

/// A request that is redirected more often is given up.
const MAX_REDIRECTS: usize = 10;
/// Bytes a second: a body that stays slower for the time limit counts as stalled.
const SLOWEST: u64 = 1024;

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The hub refuses with 401, 403 or 404.
    Denied(u16),
    /// The network or the hub failed; another attempt may succeed.
    Interrupted(String),
    /// The answer must not be used, or the cache can't be written.
    Final(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Final(format!("the cache can't be used: {error}"))
    }
}

/// A hub's address, and the token that it alone is sent.
pub(super) struct Client {
    agent: Agent,
    endpoint: Url,
    token: Option<String>,
    timeout: Duration,
}

impl Client {
    /// `timeout` is how long a transfer may stall.
    pub(super) fn new(endpoint: Url, token: Option<String>, timeout: Duration) -> Self {
        let agent = ureq::AgentBuilder::new()
            .redirects(0)
            .try_proxy_from_env(true)
            .timeout_connect(timeout)
            .timeout_read(timeout)
            .timeout_write(timeout)
            .user_agent(concat!("pascaline/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent, endpoint, token, timeout }
    }

    /// The endpoint with these parts appended to its path, escaped.
    pub(super) fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    /// The answer to a GET request, redirects followed.
    pub(super) fn get(&self, url: Url, range: Option<&str>) -> Result<Response, Failure> {
        self.follow(url, range, |_, _| true)
    }

    /// The hub's own answer about a file: the redirect to another host, where large files lie, is not followed.
    pub(super) fn describe(&self, url: Url, range: Option<&str>) -> Result<Response, Failure> {
        self.follow(url, range, |response, next| !response.has("x-linked-etag") && self.is_endpoint(next))
    }

    fn follow(
        &self,
        mut url: Url,
        range: Option<&str>,
        is_followed: impl Fn(&Response, &Url) -> bool,
    ) -> Result<Response, Failure> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.request(&url, range)?;
            if !(300..400).contains(&response.status()) {
                return Ok(response);
            }
            let next = redirected(&url, response.header("location"))?;
            if !is_followed(&response, &next) {
                return Ok(response);
            }
            url = next;
        }
        Err(Failure::Final(format!("there are more than {MAX_REDIRECTS} redirects")))
    }

    /// Scheme, host and port are the endpoint's.
    fn is_endpoint(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.origin()
    }

    fn request(&self, url: &Url, range: Option<&str>) -> Result<Response, Failure> {
        let mut request = self.agent.request_url("GET", url).set("Accept-Encoding", "identity");
        if let Some(range) = range {
            request = request.set("Range", range);
        }
        let own = self.is_endpoint(url);
        if let (true, Some(token)) = (own, &self.token) {
            request = request.set("Authorization", &format!("Bearer {token}"));
        }
        // Neither looking up a name nor slow headers have a time limit in ureq, so a stalled request is abandoned with
        // its thread.
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let _ = sender.send(request.call().map_err(Box::new)); // nobody may wait any more
        });
        let answer = receiver.recv_timeout(self.timeout).map_err(|_| self.stalled())?;
        answer.map_err(|error| match *error {
            ureq::Error::Status(status @ (401 | 403 | 404), _) if own => Failure::Denied(status),
            ureq::Error::Status(status, _) => Failure::Interrupted(format!("status {status}")),
            // Its message may hold what the other side sent.
            ureq::Error::Transport(error) => Failure::Interrupted(error.kind().to_string()),
        })
    }

    fn stalled(&self) -> Failure {
        Failure::Interrupted(format!("nothing came for {} seconds", self.timeout.as_secs()))
    }

    /// Hands on a body of at most `limit` bytes, piece by piece. Of a longer one the rest is not read.
    pub(super) fn read(
        &self,
        response: Response,
        limit: u64,
        write: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let too_long = || Failure::Final(format!("the answer is longer than {limit} bytes"));
        let stated = response.header("content-length").and_then(|length| length.parse::<u64>().ok());
        if stated.is_some_and(|stated| stated > limit) {
            return Err(too_long());
        }
        let mut body = response.into_reader();
        let mut buffer = vec![0; 1 << 16];
        let (mut total, mut mark, mut since) = (0, 0, Instant::now());
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) if total == limit => return Ok(()), // only the connection's end is missing
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(self.stalled()),
                Err(error) => return Err(Failure::Interrupted(error.kind().to_string())),
            };
            total += count as u64;
            if total > limit {
                return Err(too_long());
            }
            write(&buffer[..count])?;
            if since.elapsed() > self.timeout {
                if total - mark < SLOWEST * self.timeout.as_secs() {
                    return Err(Failure::Interrupted(format!("slower than {SLOWEST} bytes a second")));
                }
                (mark, since) = (total, Instant::now());
            }
        }
    }
}

/// The address that a redirect leads to; never from https to another scheme.
fn redirected(from: &Url, location: Option<&str>) -> Result<Url, Failure> {
    let next = location.and_then(|location| from.join(location).ok());
    let next = next.ok_or_else(|| Failure::Final("a redirect has no valid address".to_owned()))?;
    match (from.scheme(), next.scheme()) {
        (_, "https") | ("http", "http") => Ok(next),
        (from, to) => Err(Failure::Final(format!("a redirect from {from} to {to} is not followed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scheme_host_and_port_of_the_endpoint_get_the_token() {
        let url = |text: &str| Url::parse(text).unwrap();
        let client = Client::new(url("https://hub.example/mirror"), Some("t".into()), Duration::from_secs(1));
        for own in ["https://hub.example/a", "https://HUB.example:443/b"] {
            assert!(client.is_endpoint(&url(own)), "{own}");
        }
        for other in [
            "http://hub.example/",
            "https://hub.example:8443/",
            "https://cdn.hub.example/",
            "https://hub.example.evil/",
            "https://hub.example@evil/",
            "https://evil/hub.example",
            "file://hub.example/",
        ] {
            assert!(!client.is_endpoint(&url(other)), "{other}");
        }
        assert_eq!(
            client.url(["a b", "c?d#e%2e/f"]).as_str(),
            "https://hub.example/mirror/a%20b/c%3Fd%23e%252e%2Ff"
        );
    }

    #[test]
    fn redirects_keep_the_encryption() {
        let secure = Url::parse("https://hub.example/a/b").unwrap();
        let plain = Url::parse("http://hub.example/a/b").unwrap();
        let to = |from: &Url, location| redirected(from, Some(location)).ok().map(String::from);
        assert_eq!(to(&secure, "../c").as_deref(), Some("https://hub.example/c"));
        assert_eq!(to(&secure, "https://cdn.example/c").as_deref(), Some("https://cdn.example/c"));
        assert_eq!(to(&plain, "//cdn.example/c").as_deref(), Some("http://cdn.example/c"));
        assert_eq!(to(&plain, "https://cdn.example/c").as_deref(), Some("https://cdn.example/c"));
        for location in ["http://hub.example/a/b", "http://cdn.example/", "file:///etc/passwd", "https://"] {
            assert_eq!(to(&secure, location), None, "{location}");
        }
        assert_eq!(to(&plain, "ftp://hub.example/a"), None);
        assert!(matches!(redirected(&secure, None), Err(Failure::Final(_))));
    }
}
