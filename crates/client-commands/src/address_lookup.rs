//! Lookup of the server's address, also if the system starts no further thread.

use std::net::IpAddr;
use std::sync::mpsc;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

/// Looks names up on a thread of its own, which limits the time. If no thread can be started, the
/// calling thread looks the name up, because ureq's resolver would panic.
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
        if is_address(uri) {
            return look_up(uri, config);
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let (own_uri, own_config) = (uri.clone(), config.clone());
        let lookup = move || drop(sender.send(look_up(&own_uri, &own_config)));
        match std::thread::Builder::new().name("lookup".to_owned()).spawn(lookup) {
            Ok(_) => {
                receiver.recv_timeout(*timeout.after).unwrap_or(Err(Error::Timeout(timeout.reason)))
            }
            Err(_) => look_up(uri, config),
        }
    }
}

/// Looks a name up on the calling thread: without a limit of the time, ureq starts no thread.
fn look_up(uri: &Uri, config: &Config) -> Result<ResolvedSocketAddrs, Error> {
    DefaultResolver::default().resolve(uri, config, NextTimeout::default())
}

/// Returns true if the host is an IP address, which needs no lookup.
fn is_address(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host.parse::<IpAddr>().is_ok()
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
