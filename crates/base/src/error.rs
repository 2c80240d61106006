//! One error for everything a client or operator may see: a kind that maps to a status, and a
//! sentence.

use std::time::Duration;

/// What went wrong, in the vocabulary of gRPC status codes; the doors derive HTTP and gRPC statuses
/// from it in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong and will never succeed (shape, type, name, syntax).
    InvalidArgument,
    /// The body is larger than the configured limit.
    TooLarge,
    /// No such model, version or route.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// The request is right but the state does not allow it (version not ready, policy forbids).
    FailedPrecondition,
    /// The caller may not do this.
    PermissionDenied,
    /// A queue or budget is full; trying again later may help.
    ResourceExhausted,
    /// A disk has no room, or less than is kept free; nothing changes until somebody frees some.
    StorageFull,
    /// The server cannot answer now (starting, stopping); trying again may help.
    Unavailable,
    /// The deadline passed.
    DeadlineExceeded,
    /// The client took too long to send its request.
    ClientTimeout,
    /// The client has gone.
    Cancelled,
    /// The protocol knows this, Millpond does not.
    Unimplemented,
    /// A file or message is damaged.
    DataLoss,
    /// Our bug, or an engine's.
    Internal,
}

/// An error with its kind, a message for people, and (for overload) when to try again.
///
/// Boxed so that `Result<T>` stays small on the request path.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
    retry_after: Option<Duration>,
}

/// `std::result::Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident),* $(,)?) => {
        $($(#[$doc])* pub fn $name(message: impl Into<String>) -> Error { Error::new(ErrorKind::$kind, message) })*
    };
}

impl Error {
    /// An error of `kind` with a message that says what is wrong and, where it can, what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, message: message.into(), retry_after: None }))
    }

    constructors! {
        /// The request can never succeed as it is.
        invalid => InvalidArgument,
        /// The body is over its limit.
        too_large => TooLarge,
        /// The thing named is not there.
        not_found => NotFound,
        /// Allowed in another state only.
        precondition => FailedPrecondition,
        /// Not allowed for this caller.
        denied => PermissionDenied,
        /// A bounded resource is used up.
        exhausted => ResourceExhausted,
        /// A disk is full.
        storage_full => StorageFull,
        /// Not now.
        unavailable => Unavailable,
        /// Too late.
        deadline => DeadlineExceeded,
        /// The client has gone.
        cancelled => Cancelled,
        /// Known to the protocol, not to us.
        unimplemented => Unimplemented,
        /// Damaged bytes.
        data_loss => DataLoss,
        /// A bug, or an engine's failure.
        internal => Internal,
    }

    /// Adds advice on when to try again.
    pub fn with_retry_after(mut self, after: Duration) -> Error {
        self.0.retry_after = Some(after);
        self
    }

    /// Puts `context` and a colon before the message.
    pub fn context(mut self, context: impl std::fmt::Display) -> Error {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// When to try again, if anything is known about it.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// An I/O error on `path`, with the kind that a client should see.
    pub fn io(path: &std::path::Path, error: &std::io::Error) -> Error {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            std::io::ErrorKind::OutOfMemory => ErrorKind::ResourceExhausted,
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                ErrorKind::StorageFull
            }
            std::io::ErrorKind::IsADirectory | std::io::ErrorKind::NotADirectory => {
                ErrorKind::InvalidArgument
            }
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidData => {
                ErrorKind::DataLoss
            }
            // EMFILE and ENFILE: too many files are open in the process, or in the system.
            _ if matches!(error.raw_os_error(), Some(23 | 24)) => ErrorKind::ResourceExhausted,
            _ => ErrorKind::Internal,
        };
        Error::new(kind, format!("{}: {error}", path.display()))
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}

impl std::error::Error for Error {}
