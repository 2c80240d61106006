//! Notifications to the service manager, in the protocol of sd_notify(3).

use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager that started this process. Without one, every notification does nothing.
#[derive(Clone, Debug, Default)]
pub struct ServiceManager {
    socket: Option<OsString>,
}

impl ServiceManager {
    /// Returns the manager that listens at `socket`, the value of `NOTIFY_SOCKET`: a path, or an
    /// abstract name after `@`.
    pub fn at(socket: Option<OsString>) -> ServiceManager {
        ServiceManager { socket }
    }

    /// Notifies the manager that the service is ready, with a status line for people.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Notifies the manager that the service reads its configuration again. Dropping the result
    /// notifies it of the end.
    #[must_use = "dropping it ends the reload"]
    pub fn reloading(&self) -> ReloadNotice {
        // Requested by `Type=notify-reload`, which compares it with the time of its request.
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_us()));
        ReloadNotice { manager: self.clone() }
    }

    /// Notifies the manager that the service stops. With `time_max`, the manager does not kill the
    /// service before that time, even if its own time limit is shorter.
    pub fn stopping(&self, time_max: Option<Duration>) {
        match time_max {
            None => self.send("STOPPING=1"),
            Some(time) => {
                self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", time.as_micros()));
            }
        }
    }

    /// Sends a message. Logs a manager that does not listen, because it may kill a service that
    /// seems not ready.
    fn send(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        let sent = address(socket)
            .and_then(|to| UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &to));
        if let Err(error) = sent {
            tracing::warn!(socket = %socket.display(), %error, "the service manager was not notified");
        }
    }
}

/// A reload in progress.
#[derive(Debug)]
pub struct ReloadNotice {
    manager: ServiceManager,
}

impl Drop for ReloadNotice {
    fn drop(&mut self) {
        self.manager.send("READY=1");
    }
}

fn address(socket: &OsStr) -> std::io::Result<SocketAddr> {
    match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(socket),
    }
}

/// Returns the time of CLOCK_MONOTONIC in microseconds.
fn monotonic_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time` only. It cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut message = [0; 256];
        let length = socket.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_reload_ends_when_its_notice_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::at(Some(path.into()));
        manager.ready("serving http://127.0.0.1:8501");
        assert_eq!(received(&socket), "READY=1\nSTATUS=serving http://127.0.0.1:8501");
        let notice = manager.reloading();
        assert!(received(&socket).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        drop(notice);
        assert_eq!(received(&socket), "READY=1");
        manager.stopping(None);
        assert_eq!(received(&socket), "STOPPING=1");
        manager.stopping(Some(Duration::from_millis(1500)));
        assert_eq!(received(&socket), "STOPPING=1\nEXTEND_TIMEOUT_USEC=1500000");
    }

    #[test]
    fn abstract_sockets_are_reached() {
        let name = format!("millpond-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        ServiceManager::at(Some(format!("@{name}").into())).stopping(None);
        assert_eq!(received(&socket), "STOPPING=1");
    }

    #[test]
    fn a_missing_manager_is_no_error() {
        ServiceManager::default().stopping(None);
        ServiceManager::at(Some("/nonexistent/notify".into())).stopping(None);
    }
}
