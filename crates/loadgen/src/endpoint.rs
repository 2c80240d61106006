//! Addresses of servers under test.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, Result};

use crate::port::{PortProtocol, probe_protocol};
use crate::tls::{TlsArgs, TlsClient};

/// Name of the host in requests over a Unix socket.
const UNIX_AUTHORITY: &str = "localhost";

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// gRPC over HTTP/2.
    Grpc,
    /// HTTP/1.1.
    Http,
}

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Protocol of the server.
    pub transport: Transport,
    /// "host:port".
    pub authority: String,
    /// Kind of connection to the server.
    pub link: Link,
    /// Key that every request sends, if the server requires one.
    pub key: Option<ApiKey>,
}

/// Key of a server. Its text does not show in messages.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(Arc<str>);

impl ApiKey {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// A way to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// TCP in plain text.
    Tcp,
    /// TCP with TLS.
    Tls(TlsClient),
    /// The Unix socket of this path.
    Unix(PathBuf),
}

impl Endpoint {
    /// Returns an endpoint in plain text.
    pub fn new(transport: Transport, authority: impl Into<String>) -> Endpoint {
        Endpoint { transport, authority: authority.into(), link: Link::Tcp, key: None }
    }

    /// Sets the key that every request sends.
    #[must_use]
    pub fn with_key(self, key: Option<String>) -> Endpoint {
        Endpoint { key: key.map(|key| ApiKey(key.into())), ..self }
    }

    /// Returns true if its connections use TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self.link, Link::Tls(_))
    }

    /// Parses `grpc[s]://host:port`, `http[s]://host:port`, `unix:PATH` (gRPC) or `http+unix:PATH`.
    ///
    /// # Errors
    /// `InvalidArgument` for anything else, and for certificates of `tls` that cannot be used.
    pub fn parse(url: &str, tls: &TlsArgs) -> Result<Endpoint> {
        let wanted = || {
            Error::invalid(format!(
                "\"{url}\": use grpc://host:port or http://host:port, grpcs:// or https:// with TLS, or unix:PATH or \
                 http+unix:PATH for a Unix socket"
            ))
        };
        for (scheme, transport) in [
            ("unix:", Transport::Grpc),
            ("grpc+unix:", Transport::Grpc),
            ("http+unix:", Transport::Http),
        ] {
            if let Some(path) = url.strip_prefix(scheme) {
                let path = path.strip_prefix("//").unwrap_or(path);
                let link = Link::Unix(path.into());
                let endpoint = Endpoint { link, ..Endpoint::new(transport, UNIX_AUTHORITY) };
                return if path.is_empty() { Err(wanted()) } else { Ok(endpoint) };
            }
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(wanted)?;
        let transport = match scheme {
            "grpc" | "grpcs" => Transport::Grpc,
            "http" | "https" => Transport::Http,
            _ => return Err(wanted()),
        };
        let authority = rest.trim_end_matches('/');
        let port = authority.rsplit_once(':').and_then(|(host, port)| {
            (!host.is_empty() && !authority.contains('/')).then(|| port.parse::<u16>().ok())?
        });
        port.ok_or_else(wanted)?;
        let link = match scheme {
            "grpcs" | "https" => Link::Tls(TlsClient::new(tls, transport, authority)?),
            _ => Link::Tcp,
        };
        Ok(Endpoint { link, ..Endpoint::new(transport, authority) })
    }
}

/// Returns an error that names the other protocol if the port speaks it. Connects to ports without
/// TLS only.
pub fn other_protocol(endpoint: &Endpoint) -> Option<Error> {
    let authority = &endpoint.authority;
    if endpoint.link != Link::Tcp {
        return None;
    }
    let message = match (endpoint.transport, probe_protocol(authority)?) {
        (Transport::Grpc, PortProtocol::Http1) => {
            format!(
                "{authority} is an HTTP port; use http://{authority}, or the gRPC port (8500 by default)"
            )
        }
        (Transport::Http, PortProtocol::Http2) => {
            format!(
                "{authority} is a gRPC port; use grpc://{authority}, or the HTTP port (8501 by default)"
            )
        }
        (Transport::Grpc, PortProtocol::Tls) => {
            format!("{authority} takes encrypted connections only; use grpcs://{authority}")
        }
        (Transport::Http, PortProtocol::Tls) => {
            format!("{authority} takes encrypted connections only; use https://{authority}")
        }
        _ => return None,
    };
    Some(Error::invalid(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let parse = |url: &str| Endpoint::parse(url, &TlsArgs::default());
        let endpoint = parse("grpc://127.0.0.1:8500/").unwrap();
        assert_eq!(endpoint, Endpoint::new(Transport::Grpc, "127.0.0.1:8500"));
        assert_eq!(parse("http://[::1]:1").unwrap().authority, "[::1]:1");
        for (url, transport) in
            [("grpcs://[::1]:1", Transport::Grpc), ("https://a.example:1", Transport::Http)]
        {
            let endpoint = parse(url).unwrap();
            assert!(endpoint.is_tls() && endpoint.transport == transport, "{url}");
        }
        for (url, transport) in [
            ("unix:/run/a.sock", Transport::Grpc),
            ("unix:///run/a.sock", Transport::Grpc),
            ("http+unix:/run/a.sock", Transport::Http),
        ] {
            let endpoint = parse(url).unwrap();
            assert_eq!(endpoint.link, Link::Unix("/run/a.sock".into()), "{url}");
            assert_eq!(endpoint.transport, transport);
        }
        for wrong in [
            "127.0.0.1:8500",
            "ftp://a:1",
            "grpc://a",
            "grpcs://a",
            "grpc://:1",
            "http://a:b",
            "http://a:1/x",
            "unix:",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
