//! Lookup of the collector's address, also if the system starts no further thread.

use std::net::IpAddr;
use std::sync::mpsc;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

/// Looks names up on a separate thread, which limits the time. If no thread can be started, the
/// calling thread looks the name up. The resolver of ureq would panic then and end the thread that
/// exports.
#[derive(Debug)]
struct CollectorLookup;

/// Returns a client for the collector.
pub(crate) fn agent(config: Config) -> Agent {
    Agent::with_parts(config, DefaultConnector::default(), CollectorLookup)
}

impl Resolver for CollectorLookup {
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

/// Resolves the host of `uri` on the calling thread, without a time limit. With a limit, ureq would
/// start a thread.
fn look_up(uri: &Uri, config: &Config) -> Result<ResolvedSocketAddrs, Error> {
    DefaultResolver::default().resolve(uri, config, NextTimeout::default())
}

/// Returns true if the host is an IP address, which needs no lookup.
fn is_address(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host.parse::<IpAddr>().is_ok()
}
