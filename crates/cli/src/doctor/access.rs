//! Access to a server with the settings of the environment.

use std::net::{IpAddr, Ipv4Addr};

use super::Check;
use crate::environment;
use crate::serve::file::SettingsFile;
use crate::values::Host;

/// Checks the settings file that `serve` would read without flags.
pub(super) fn check() -> Check {
    let file = environment::CONFIG.path().map(|path| SettingsFile::read(&path));
    match file {
        Some(Err(failure)) => {
            let meaning = format!("{}; serve would not start with it.", failure.message());
            Check::warn("access", "unknown", meaning)
        }
        Some(Ok(file)) => {
            access(file.server.host, file.search.api_key.or_else(|| environment::API_KEY.text()))
        }
        None => access(None, environment::API_KEY.text()),
    }
}

fn access(host: Option<Host>, api_key: Option<String>) -> Check {
    let host = host.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |Host(address)| address);
    let found = format!("{host}, {}", if api_key.is_some() { "API key" } else { "no API key" });
    if host.is_loopback() {
        let meaning = "Only this machine reaches the server, unless serve --host says otherwise.";
        return Check::ok("access", found, meaning);
    }
    if api_key.is_none() {
        let meaning = "Anyone who reaches this address can run models, read metrics, images and collections, and change \
                       and delete collections. Set MILLPOND_API_KEY or api-key, or host = \"127.0.0.1\".";
        return Check::warn("access", found, meaning);
    }
    let meaning = "Every call but health checks requires a key.";
    Check::ok("access", found, meaning)
}

#[cfg(test)]
mod tests {
    use super::super::CheckVerdict;
    use super::*;

    #[test]
    fn a_server_that_anyone_reaches_wants_a_key() {
        let everywhere = Some(Host([0, 0, 0, 0].into()));
        assert_eq!(access(None, None).verdict, CheckVerdict::Ok);
        let open = access(everywhere, None);
        assert!(
            open.verdict == CheckVerdict::Warn && open.meaning.contains("MILLPOND_API_KEY"),
            "{open:?}"
        );
        assert_eq!(access(everywhere, Some("k".into())).verdict, CheckVerdict::Ok);
    }
}
