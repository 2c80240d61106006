//! The client of a connection.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The client of a connection, put into each request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client of a TCP port.
    Tcp(SocketAddr),
    /// A client of a Unix socket, with the number of its user if the system reports it.
    Unix(Option<u32>),
}

impl Peer {
    /// Returns the client at `address`. A socket for IPv4 and IPv6 reports an IPv4 client with an
    /// IPv4-mapped IPv6 address, which is converted back.
    pub(crate) fn tcp(address: SocketAddr) -> Peer {
        match address.ip().to_canonical() {
            v4 @ IpAddr::V4(_) => Peer::Tcp(SocketAddr::new(v4, address.port())),
            IpAddr::V6(_) => Peer::Tcp(address),
        }
    }

    /// Returns true if the client is on this machine. The mode of a Unix socket's file decides
    /// about its clients.
    pub(crate) fn is_local(self) -> bool {
        match self {
            Peer::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Peer::Unix(_) => true,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(formatter),
            Peer::Unix(Some(user)) => write!(formatter, "unix:user={user}"),
            Peer::Unix(None) => formatter.write_str("unix"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_clients_are_local() {
        let tcp = |text: &str| Peer::Tcp(text.parse().unwrap());
        assert!(tcp("127.0.0.1:1").is_local() && tcp("[::ffff:127.0.0.1]:1").is_local());
        assert!(!tcp("10.0.0.1:1").is_local());
        let user = Peer::Unix(Some(1000));
        assert!(user.is_local() && Peer::Unix(None).is_local());
        assert_eq!(user.to_string(), "unix:user=1000");
        assert_eq!(tcp("10.0.0.1:1").to_string(), "10.0.0.1:1");
    }
}
