//! Access to a server with the settings of the environment.

use std::net::{IpAddr, Ipv4Addr};

use crate::Check;

/// Settings of access that `serve` would use without flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessSettings {
    /// The settings file is wrong, for this reason.
    Unreadable(String),
    /// The settings of file and environment.
    Known {
        /// Address of the listeners; `None` for the default.
        host: Option<IpAddr>,
        /// True if there is an API key.
        has_key: bool,
    },
}

/// Checks the settings that `serve` would use without flags.
pub(crate) fn check(settings: &AccessSettings) -> Check {
    match settings {
        AccessSettings::Unreadable(reason) => {
            let meaning = format!("{reason}; serve would not start with it.");
            Check::warn("access", "unknown", meaning)
        }
        AccessSettings::Known { host, has_key } => access(*host, *has_key),
    }
}

/// Judges the address of the server and its key.
fn access(host: Option<IpAddr>, has_key: bool) -> Check {
    let host = host.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let found = format!("{host}, {}", if has_key { "API key" } else { "no API key" });
    if host.is_loopback() {
        let meaning = "Only this machine reaches the server, unless serve --host says otherwise.";
        return Check::ok("access", found, meaning);
    }
    if !has_key {
        let meaning = "Anyone who reaches this address can run models, read metrics, images and collections, and change \
                       and delete collections. Set MILLPOND_API_KEY or api-key, or host = \"127.0.0.1\".";
        return Check::warn("access", found, meaning);
    }
    let meaning = "Every call but health checks requires a key.";
    Check::ok("access", found, meaning)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CheckVerdict;

    #[test]
    fn a_server_that_anyone_reaches_wants_a_key() {
        let everywhere = Some(IpAddr::from([0, 0, 0, 0]));
        assert_eq!(access(None, false).verdict, CheckVerdict::Ok);
        let open = access(everywhere, false);
        assert!(
            open.verdict == CheckVerdict::Warn && open.meaning.contains("MILLPOND_API_KEY"),
            "{open:?}"
        );
        assert_eq!(access(everywhere, true).verdict, CheckVerdict::Ok);
    }
}
