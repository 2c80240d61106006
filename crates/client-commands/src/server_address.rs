//! The address of a server, as a flag or a variable has it.

use command_line::exit::{CommandError, CommandResult};

/// Start of all addresses at a Unix socket.
const UNIX_BASE: &str = "http://localhost";

/// Parts of a server's address.
pub(crate) struct ServerAddress {
    /// Address in messages: without user and password.
    pub(crate) shown: String,
    /// Start of the addresses of requests.
    pub(crate) root: String,
    /// Path of a Unix socket.
    pub(crate) socket: Option<String>,
}

impl ServerAddress {
    /// Parses the address `url`, which `source` has: a flag or a variable.
    ///
    /// # Errors
    /// Returns a usage error with `source` for another form than `http[s]://HOST[:PORT]` and
    /// `unix:PATH`.
    pub(crate) fn parse(source: &str, url: &str) -> CommandResult<ServerAddress> {
        let wrong = |why: &str| {
            CommandError::usage(format!("{source} {}: {why}", after_user(url)))
                .hint("write http://HOST:PORT, https://HOST:PORT or unix:PATH")
        };
        let ended = |text: &str| text.trim_end_matches('/').to_owned();
        if let Some(path) = socket_path(url) {
            if path.is_empty() {
                return Err(wrong("the path of the socket is missing"));
            }
            // A server on a socket ignores the name of the host.
            let socket = Some(path.to_owned());
            return Ok(ServerAddress { shown: ended(url), root: UNIX_BASE.to_owned(), socket });
        }
        let root = match url.split_once("://") {
            None => format!("http://{url}"),
            Some(("http" | "https", _)) => url.to_owned(),
            Some(("grpcs", rest)) => {
                return Err(wrong("this command speaks HTTP").hint(format!(
                    "give the server's HTTP port, as in https://{}",
                    after_user(rest)
                )));
            }
            Some((scheme, rest)) => {
                let why = format!("this command does not speak {scheme}");
                return Err(wrong(&why).hint(format!(
                    "give the server's HTTP port, as in http://{}",
                    after_user(rest)
                )));
            }
        };
        if url.trim().is_empty() {
            return Err(wrong("it is empty"));
        }
        if !has_host(&root) {
            let why = "no host and port can be read from it; an IPv6 address needs brackets";
            return Err(wrong(why));
        }
        Ok(ServerAddress { shown: ended(&without_user(&root)), root: ended(&root), socket: None })
    }
}

/// Returns the part of an address after user and password. An address that is not valid can have
/// any character in them.
fn after_user(address: &str) -> &str {
    address.rsplit_once('@').map_or(address, |(_, place)| place)
}

/// Returns true if an address has a host, and no port or one up to 65535.
fn has_host(address: &str) -> bool {
    let Ok(uri) = address.parse::<ureq::http::Uri>() else { return false };
    let Some(authority) = uri.authority() else { return false };
    let host = authority.host();
    !host.is_empty() && (after_user(authority.as_str()) == host || authority.port_u16().is_some())
}

/// Returns a valid address without user and password.
fn without_user(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = url.split_at(start);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest[..end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}{}", &rest[host..])
}

/// Returns the path of a Unix socket's address.
fn socket_path(url: &str) -> Option<&str> {
    let path = url.strip_prefix("unix:").or_else(|| url.strip_prefix("http+unix:"))?;
    Some(path.strip_prefix("//").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_at_in_a_path_ends_no_password() {
        assert_eq!(without_user("https://h:1/a@b"), "https://h:1/a@b");
    }
}
