//! Which names and web pages the server answers to.
//!
//! A server without a key on a loopback address is for this machine's user. A web page of a stranger's runs in that user's
//! browser, and can make its own name resolve to the loopback address (DNS rebinding): for the browser the server is then
//! that page's own. The name is still in the request's `Host`, so requests to other names than the server's are refused,
//! and those of other pages, which `Origin` names.

use super::error::ApiError;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, header};
use std::net::IpAddr;

/// Who is answered.
pub(crate) struct Visitors {
    /// Whether only requests to known names are answered.
    is_strict: bool,
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Visitors {
    /// For a server that listens at `address`. `hosts` are names that it has besides those of this machine itself; `origins`
    /// those of other pages that may use it.
    pub fn new(address: IpAddr, has_key: bool, hosts: &[String], origins: &[String]) -> Self {
        let is_strict = address.is_loopback() && !has_key || !hosts.is_empty();
        Self { is_strict, hosts: hosts.to_vec(), origins: origins.to_vec() }
    }

    /// Refuses strangers.
    pub fn check(&self, uri: Option<&Authority>, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.is_strict {
            return Ok(());
        }
        let names =
            |name: HeaderName| headers.get_all(name).into_iter().map(|value| value.to_str().unwrap_or("?"));
        // every browser sends one; a health check without one is no browser's
        for host in names(header::HOST).chain(uri.map(Authority::as_str)) {
            if !self.has_name(host) {
                return Err(ApiError::forbidden(format!(
                    "this server is not {host:?}; if it should be, start it with --allowed-host, or with --api-key"
                )));
            }
        }
        for origin in names(header::ORIGIN) {
            let is_own = origin.split_once("://").is_some_and(|(scheme, host)| {
                matches!(scheme, "http" | "https") && names(header::HOST).eq([host])
            });
            let is_allowed = self.origins.iter().any(|allowed| allowed == "*" || allowed == origin);
            if !is_own && !is_allowed {
                return Err(ApiError::forbidden(format!(
                    "pages of {origin:?} may not use this server; if they should, start it with --cors-origin"
                )));
            }
        }
        Ok(())
    }

    /// Whether a `Host`, with or without its port, is this server.
    fn has_name(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let name = authority.host().trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            || self
                .hosts
                .iter()
                .any(|allowed| allowed.eq_ignore_ascii_case(name) || allowed.eq_ignore_ascii_case(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn is_answered(visitors: &Visitors, headers: &[(HeaderName, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        visitors.check(None, &map).is_ok()
    }

    #[test]
    fn names_of_this_machine_are_the_servers() {
        let here = Visitors::new([127, 0, 0, 1].into(), false, &["chat.example".into()], &[]);
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:8080",
            "Chat.Example:443",
        ] {
            assert!(is_answered(&here, &[(header::HOST, host)]), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "192.168.0.1",
            "0.0.0.0",
            "",
            ":80",
            "löcalhost",
            "a b",
        ] {
            assert!(!is_answered(&here, &[(header::HOST, host)]), "{host}");
            assert!(!is_answered(&here, &[(header::HOST, "localhost"), (header::HOST, host)]), "{host}");
        }
        assert!(is_answered(&here, &[]), "a health check");
        for (address, has_key) in [([127, 0, 0, 1], true), ([192, 168, 0, 1], false)] {
            let other = Visitors::new(address.into(), has_key, &[], &[]);
            assert!(is_answered(&other, &[(header::HOST, "evil.example")]));
        }
    }

    #[test]
    fn pages_are_the_servers_own_or_allowed() {
        let from = |origins: &[&str], origin: &str| {
            let origins: Vec<_> = origins.iter().map(|&origin| origin.to_owned()).collect();
            let here = Visitors::new([127, 0, 0, 1].into(), false, &[], &origins);
            is_answered(&here, &[(header::HOST, "localhost:8080"), (header::ORIGIN, origin)])
        };
        assert!(from(&[], "http://localhost:8080"));
        for origin in [
            "null",
            "http://localhost:3000",
            "http://127.0.0.1:8080",
            "https://evil.example",
            "file://localhost:8080",
        ] {
            assert!(!from(&[], origin), "{origin}");
            assert!(from(&[origin], origin) && from(&["*"], origin), "{origin}");
        }
    }
}
