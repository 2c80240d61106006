//! Listening sockets: TCP ports, and Unix sockets for clients on this machine.

use std::io::{Error as IoError, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::{Error, Result};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, UnixListener};

use crate::peer::Peer;

/// Maximum number of connections that wait to be accepted at a socket. The kernel allows at most
/// `net.core.somaxconn`, which is 4,096 by default. A client whose connection finds the queue of a
/// TCP port full tries again after a second.
const ACCEPT_QUEUE_MAX: i32 = 4096;
/// Maximum length of the path of a Unix socket. `sun_path` has 108 bytes, and clients end it with a
/// zero.
const PATH_BYTES_MAX: usize = 107;

/// Flags of the command line that set an address.
#[derive(Clone, Copy, Debug)]
pub struct AddressFlags {
    /// Flag of the host, such as "--host".
    pub host: &'static str,
    /// Flag of the port, such as "--http-port".
    pub port: &'static str,
}

/// Binds a socket to `host` and `port`, which the command line sets by `flags`. The host `::` is
/// every address of IPv4 and IPv6. Without IPv6 in the kernel, it is every address of IPv4.
///
/// # Errors
/// `Unavailable`, with the address and a remedy.
pub fn bind(host: IpAddr, port: u16, flags: AddressFlags) -> Result<std::net::TcpListener> {
    let address = SocketAddr::new(host, port);
    let listener = if host == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        bind_every_address(port)
    } else {
        std::net::TcpListener::bind(address)
    };
    let listener = listener.map_err(|e| {
        let remedy = match e.kind() {
            ErrorKind::AddrNotAvailable => {
                format!("{} must be an address of this machine", flags.host)
            }
            _ => format!("choose another with {}", flags.port),
        };
        Error::unavailable(format!("cannot listen on {address}: {e}; {remedy}")).with_source(e)
    })?;
    let failed = |e: IoError| Error::internal(address.to_string()).caused_by(e);
    // The standard library listens with a queue of 128 connections. A second call sets its size.
    rustix::net::listen(&listener, ACCEPT_QUEUE_MAX).map_err(|e| failed(e.into()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Binds a socket to every address of IPv4 and IPv6. The standard library leaves IPv4 to the
/// system's setting `net.ipv6.bindv6only`.
fn bind_every_address(port: u16) -> std::io::Result<std::net::TcpListener> {
    let family = AddressFamily::INET6;
    let kind = SocketType::STREAM;
    let socket = match rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None) {
        Ok(socket) => socket,
        // The kernel has no IPv6.
        Err(Errno::AFNOSUPPORT) => {
            return std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        }
        Err(error) => return Err(error.into()),
    };
    // As in the standard library, because a restarted server can then bind a port with old
    // connections.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    rustix::net::bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    rustix::net::listen(&socket, ACCEPT_QUEUE_MAX)?;
    Ok(socket.into())
}

/// A bound socket that accepts connections.
pub enum ListenSocket {
    /// A TCP port.
    Tcp(TcpListener),
    /// A socket in the file system.
    Unix(UnixSocket),
}

impl ListenSocket {
    /// Waits for a connection. The returned stream may be a Unix socket, so only calls that all
    /// stream sockets have are made on it.
    pub(crate) async fn accept(&self) -> std::io::Result<(std::net::TcpStream, Peer)> {
        match self {
            ListenSocket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((stream.into_std()?, Peer::tcp(address)))
            }
            ListenSocket::Unix(socket) => {
                let (stream, _) = socket.listener.accept().await?;
                let user = stream.peer_cred().ok().map(|peer| peer.uid());
                Ok((OwnedFd::from(stream.into_std()?).into(), Peer::Unix(user)))
            }
        }
    }

    /// Returns true for a TCP port.
    pub fn is_tcp(&self) -> bool {
        self.tcp().is_some()
    }

    /// Returns the TCP listener, if it is one.
    pub(crate) fn tcp(&self) -> Option<&TcpListener> {
        match self {
            ListenSocket::Tcp(listener) => Some(listener),
            ListenSocket::Unix(_) => None,
        }
    }
}

/// A Unix socket, whose file is removed when this is dropped.
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, so that another server's file is not removed.
    file: (u64, u64),
}

impl UnixSocket {
    /// Binds the socket `path`, whose file gets `mode`. Replaces the file of a socket on which no
    /// process listens.
    ///
    /// # Errors
    /// `Unavailable` if another server listens there, if `path` is a file of another kind, or if
    /// the directory does not permit it.
    pub fn bind(path: &Path, mode: u32) -> Result<UnixSocket> {
        let failed = |error: IoError| {
            Error::unavailable(format!("cannot listen on {}", path.display())).caused_by(error)
        };
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(Error::unavailable(format!(
                "cannot listen on {}: the path of a socket has at most {PATH_BYTES_MAX} bytes; \
                 give a shorter one",
                path.display()
            )));
        }
        remove_stale(path)?;
        let listener = listen(path, mode).map_err(failed)?;
        let file = identity(path).map_err(failed)?;
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        Ok(UnixSocket { listener, path: path.to_owned(), file })
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "the socket's file cannot be removed");
        }
    }
}

/// Returns a socket that listens at `path`.
fn listen(path: &Path, mode: u32) -> std::io::Result<std::os::unix::net::UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux gives the file the mode of the socket, less the umask. So no client of a user that
    // `mode` excludes connects before the mode is set.
    rustix::fs::fchmod(&socket, Mode::from_bits_truncate(mode))?;
    rustix::net::bind(&socket, &address)?;
    // The umask must not remove requested bits of the mode.
    rustix::fs::chmod(path, Mode::from_bits_truncate(mode))?;
    rustix::net::listen(&socket, ACCEPT_QUEUE_MAX)?;
    Ok(socket.into())
}

/// Removes the file of a socket whose server has ended.
fn remove_stale(path: &Path) -> Result<()> {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let taken = |why: &str| {
        Error::unavailable(format!(
            "cannot listen on {}: {why}; choose another path",
            path.display()
        ))
    };
    if !meta.file_type().is_socket() {
        return Err(taken("a file that is not a socket is there"));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(taken("another server listens there")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| Error::io(path, &error))
        }
        Err(error) => Err(taken(&error.to_string())),
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const FLAGS: AddressFlags = AddressFlags { host: "--admin-host", port: "--admin-port" };

    fn bind(path: &Path) -> Result<UnixSocket> {
        UnixSocket::bind(path, 0o600)
    }

    #[test]
    fn an_address_that_cannot_be_bound_names_its_flag() {
        // No machine has an address of this network (RFC 5737).
        let error = super::bind([192, 0, 2, 1].into(), 0, FLAGS).unwrap_err();
        assert!(
            error.message().ends_with("--admin-host must be an address of this machine"),
            "{error}"
        );
        let taken = super::bind([127, 0, 0, 1].into(), 0, FLAGS).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = super::bind([127, 0, 0, 1].into(), port, FLAGS).unwrap_err();
        assert!(error.message().ends_with("choose another with --admin-port"), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }

    #[test]
    fn a_burst_of_connections_waits_in_the_queue() {
        let queue_max: usize = std::fs::read_to_string("/proc/sys/net/core/somaxconn")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let listener = super::bind([127, 0, 0, 1].into(), 0, FLAGS).unwrap();
        let address = listener.local_addr().unwrap();
        // A full queue drops the attempt, and the next one comes after a second. This thread may be
        // paused for that second. A full queue drops all of these attempts.
        let limit = std::time::Duration::from_millis(900);
        let connect = || std::net::TcpStream::connect_timeout(&address, limit).ok();
        let clients: Vec<_> =
            (0..queue_max.min(400)).map(|_| (0..5).find_map(|_| connect()).unwrap()).collect();
        assert_eq!(clients.len(), queue_max.min(400));
    }

    #[tokio::test]
    async fn every_address_accepts_ipv4_and_ipv6() {
        let listener = super::bind(Ipv6Addr::UNSPECIFIED.into(), 0, FLAGS).unwrap();
        let bound = listener.local_addr().unwrap();
        let socket = ListenSocket::Tcp(TcpListener::from_std(listener).unwrap());
        let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, bound.port()));
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, bound.port()));
        // The kernel of a test machine may have no IPv6, or no address of it on the loopback.
        let has_v6 = bound.is_ipv6() && std::net::TcpListener::bind((v6.ip(), 0)).is_ok();
        for address in [Some(v4), has_v6.then_some(v6)].into_iter().flatten() {
            let client = std::net::TcpStream::connect(address).unwrap();
            let (_, peer) = socket.accept().await.unwrap();
            assert_eq!(peer, Peer::Tcp(client.local_addr().unwrap()));
        }
    }

    #[tokio::test]
    async fn a_socket_is_private_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grpc.sock");
        let socket = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = bind(&path).err().unwrap();
        assert!(error.message().contains("another server listens there"), "{error}");
        drop(socket);
        assert!(!path.exists());
        let shared = UnixSocket::bind(&path, 0o666).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o666, "not less the umask");
        drop(shared);
    }

    #[tokio::test]
    async fn stale_sockets_are_replaced_and_files_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grpc.sock");
        // A server that was killed leaves its file.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let first = bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = bind(&path).unwrap();
        drop(first);
        assert!(path.exists(), "it belongs to the second");
        drop(second);
        std::fs::write(&path, "precious").unwrap();
        assert!(bind(&path).err().unwrap().message().contains("is not a socket"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        let long = dir.path().join("a".repeat(PATH_BYTES_MAX));
        assert!(bind(&long).err().unwrap().message().contains("at most 107 bytes; give a shorter"));
    }
}
