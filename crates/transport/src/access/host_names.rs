//! Distinguishes this machine's own names from names that another site may own.

use std::sync::OnceLock;

/// Returns true if another site may own the name of `authority`, a host with or without a port. No
/// site owns IP addresses, `localhost` and names below it. This machine's own name and the
/// `allowed` names are the operator's.
pub(super) fn is_foreign(authority: &str, allowed: &[String]) -> bool {
    if authority.starts_with('[') {
        return false;
    }
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
        _ => authority,
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let local = host == "localhost" || host.ends_with(".localhost");
    let own = || {
        !host.is_empty()
            && (host == own_name() || allowed.iter().any(|name| name.eq_ignore_ascii_case(&host)))
    };
    !local && host.parse::<std::net::Ipv4Addr>().is_err() && !own()
}

/// Returns this machine's name in lower case. Empty if it cannot be read.
fn own_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_ascii_lowercase()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names() {
        let own = format!("{}:8501", own_name());
        let allowed = ["mill.example".to_owned()];
        for local in [
            "localhost:8501",
            "localhost",
            "Mill.localhost:1",
            "localhost.:80",
            "127.0.0.1:8501",
            "10.0.0.7",
            "[::1]:8501",
            "MILL.example:8501",
            &own,
        ] {
            assert!(own_name().is_empty() || !is_foreign(local, &allowed), "{local}");
        }
        for foreign in [
            "evil.example:8501",
            "evil.example",
            "127.0.0.1.evil.example:80",
            "localhost.evil.example",
            "other.mill.example",
            "evil",
            "",
        ] {
            assert!(is_foreign(foreign, &allowed), "{foreign}");
        }
    }
}
