//! The client of a connection.

use std::net::SocketAddr;

/// The client's address, put into each request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

impl Peer {
    /// Returns true if the client is on this machine.
    pub fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }
}
