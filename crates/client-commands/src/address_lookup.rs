//! Lookup of the server's address, also if the system starts no further thread.

use std::net::IpAddr;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

/// Looks names up on a thread of its own, which limits the time. If no thread can be started, the
/// calling thread looks the name up: ureq's resolver would panic.
#[derive(Debug)]
struct AddressLookup;

/// Returns a client for addresses of TCP.
pub(crate) fn agent(config: Config) -> Agent {
    Agent::with_parts(config, DefaultConnector::default(), AddressLookup)
}

impl Resolver for AddressLookup {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        // Without a limit, ureq starts no thread.
        let unlimited = NextTimeout::default();
        let timeout = if is_address(uri) || !thread_starts() { unlimited } else { timeout };
        DefaultResolver::default().resolve(uri, config, timeout)
    }
}

/// Returns true if the host is an IP address, which needs no lookup.
fn is_address(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host.parse::<IpAddr>().is_ok()
}

/// Returns true if the system starts a further thread.
fn thread_starts() -> bool {
    let thread = std::thread::Builder::new().name("lookup".to_owned()).spawn(|| ());
    thread.is_ok_and(|thread| thread.join().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_no_thread() {
        for (uri, wanted) in [
            ("http://127.0.0.1:8501/x", true),
            ("https://[::1]/", true),
            ("http://localhost:8501", false),
            ("http://1.example", false),
        ] {
            assert_eq!(is_address(&uri.parse().unwrap()), wanted, "{uri}");
        }
    }

    #[test]
    fn names_and_addresses_are_resolved() {
        for uri in ["http://127.0.0.1:8501/x", "http://localhost:8501"] {
            let found = AddressLookup.resolve(
                &uri.parse().unwrap(),
                &Config::default(),
                NextTimeout::default(),
            );
            assert_eq!(found.unwrap()[0].port(), 8501, "{uri}");
        }
    }
}
