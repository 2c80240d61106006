//! Listening sockets: TCP ports, and a Unix socket for clients on this machine.

use std::io::{Error as IoError, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base::{Error, Result};
use tokio::net::{TcpListener, UnixListener};

/// Address that stands for clients of a Unix socket: they are on this machine.
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A bound socket that accepts connections.
pub enum ListenSocket {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixSocket),
}

impl ListenSocket {
    /// Waits for a connection. The returned stream may be a Unix socket: only calls that all
    /// stream sockets have are made on it.
    pub(crate) async fn accept(&self) -> std::io::Result<(std::net::TcpStream, SocketAddr)> {
        match self {
            ListenSocket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((stream.into_std()?, address))
            }
            ListenSocket::Unix(socket) => {
                let (stream, _) = socket.listener.accept().await?;
                Ok((OwnedFd::from(stream.into_std()?).into(), LOCAL))
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
    /// Binds the socket `path`, which only this user can open (mode 0600). Replaces the file of a
    /// socket on which no process listens.
    ///
    /// # Errors
    /// `Unavailable` if another server listens there, if `path` is a file of another kind, or if
    /// the directory does not permit it.
    pub fn bind(path: &Path) -> Result<UnixSocket> {
        let failed = |error: IoError| {
            Error::unavailable(format!("cannot listen on {}: {error}", path.display()))
        };
        remove_stale(path)?;
        let listener = std::os::unix::net::UnixListener::bind(path).map_err(failed)?;
        // No client can have connected in between: the process's umask already excludes others.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
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

/// Removes the file of a socket whose server is gone.
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

    fn bind(path: &Path) -> Result<UnixSocket> {
        UnixSocket::bind(path)
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
    }
}
