//! The stream of a connection: plain, or encrypted by TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::server::TlsStream;

/// An open connection.
pub(crate) enum SocketStream {
    /// A socket.
    Plain(TcpStream),
    /// A socket after the handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl SocketStream {
    /// Waits until the client's first bytes have arrived. Returns false if it closed instead.
    pub(crate) async fn wait_readable(&mut self) -> bool {
        match self {
            SocketStream::Plain(stream) => stream.readable().await.is_ok(),
            SocketStream::Tls(stream) => stream.fill_buf().await.is_ok_and(|read| !read.is_empty()),
        }
    }

    /// Splits the stream into its two directions.
    pub(crate) fn into_split(self) -> (SocketReader, SocketWriter) {
        match self {
            SocketStream::Plain(stream) => {
                let (reader, writer) = stream.into_split();
                (SocketReader::Plain(reader), SocketWriter::Plain(writer))
            }
            SocketStream::Tls(stream) => {
                let (reader, writer) = tokio::io::split(*stream);
                (SocketReader::Tls(reader), SocketWriter::Tls(writer))
            }
        }
    }
}

/// The bytes from the client.
pub(crate) enum SocketReader {
    Plain(OwnedReadHalf),
    Tls(ReadHalf<TlsStream<TcpStream>>),
}

impl AsyncRead for SocketReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            SocketReader::Plain(reader) => Pin::new(reader).poll_read(cx, buffer),
            SocketReader::Tls(reader) => Pin::new(reader).poll_read(cx, buffer),
        }
    }
}

/// The bytes to the client. TLS keeps encrypted bytes that the socket does not take, so a flush is
/// needed after the last write.
pub(crate) enum SocketWriter {
    Plain(OwnedWriteHalf),
    Tls(WriteHalf<TlsStream<TcpStream>>),
}

impl AsyncWrite for SocketWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            SocketWriter::Plain(writer) => Pin::new(writer).poll_write(cx, bytes),
            SocketWriter::Tls(writer) => Pin::new(writer).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            SocketWriter::Plain(writer) => Pin::new(writer).poll_write_vectored(cx, pieces),
            SocketWriter::Tls(writer) => Pin::new(writer).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            SocketWriter::Plain(writer) => Pin::new(writer).poll_flush(cx),
            SocketWriter::Tls(writer) => Pin::new(writer).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            SocketWriter::Plain(writer) => Pin::new(writer).poll_shutdown(cx),
            SocketWriter::Tls(writer) => Pin::new(writer).poll_shutdown(cx),
        }
    }
}
