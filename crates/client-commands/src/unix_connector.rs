//! HTTP over a Unix socket, for the HTTP client.

use std::io::{Error as IoError, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::RecvFlags;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};
use ureq::{Agent, Error, Timeout};

/// Connects to one Unix socket. The host of the address is ignored.
#[derive(Debug)]
pub(crate) struct UnixConnector {
    path: PathBuf,
}

impl UnixConnector {
    pub(crate) fn new(path: impl AsRef<Path>) -> UnixConnector {
        UnixConnector { path: path.as_ref().to_owned() }
    }

    /// Returns a client whose requests all go to the socket.
    pub(crate) fn agent(self, config: Config) -> Agent {
        Agent::with_parts(config, self, NoResolver)
    }
}

impl Connector for UnixConnector {
    type Out = UnixTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _chained: Option<()>,
    ) -> Result<Option<UnixTransport>, Error> {
        let stream = UnixStream::connect(&self.path)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(UnixTransport { stream, buffers }))
    }
}

/// Names no address, because a socket has none.
#[derive(Debug)]
struct NoResolver;

impl Resolver for NoResolver {
    fn resolve(
        &self,
        _uri: &Uri,
        _config: &Config,
        _timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        addresses.push(([127, 0, 0, 1], 0).into());
        Ok(addresses)
    }
}

/// A connection to a Unix socket.
#[derive(Debug)]
pub(crate) struct UnixTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.set_write_timeout(limit(&timeout))?;
        let written = self.stream.write_all(&self.buffers.output()[..amount]);
        written.map_err(|error| failed(error, timeout.reason))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.set_read_timeout(limit(&timeout))?;
        let read = self.stream.read(self.buffers.input_append_buf());
        let read = read.map_err(|error| failed(error, timeout.reason))?;
        self.buffers.input_appended(read);
        Ok(read > 0)
    }

    fn is_open(&mut self) -> bool {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        // Bytes that arrive without a request are not an answer either.
        matches!(
            rustix::net::recv(&self.stream, &mut byte[..], flags),
            Err(rustix::io::Errno::AGAIN)
        )
    }
}

fn limit(timeout: &NextTimeout) -> Option<Duration> {
    timeout.not_zero().map(|left| *left)
}

fn failed(error: IoError, reason: Timeout) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Timeout(reason),
        _ => error.into(),
    }
}
