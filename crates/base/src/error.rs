//! The error type of the workspace: a kind that maps to a status, and a message.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Category of an error, in the vocabulary of gRPC status codes. One table maps it to HTTP and gRPC
/// statuses ([`ErrorKind::http_status`], [`ErrorKind::grpc_code`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong and will never succeed (shape, type, name, syntax).
    InvalidArgument,
    /// The body is larger than the configured limit.
    TooLarge,
    /// No such model, version or route.
    NotFound,
    /// The name is in use already.
    AlreadyExists,
    /// The request is right but the state does not allow it (version not ready, policy forbids).
    FailedPrecondition,
    /// The caller may not do this.
    PermissionDenied,
    /// A queue or budget is full. A later retry may succeed.
    ResourceExhausted,
    /// A disk has no free space, or less than its reserve, or a file reached the limit of its size.
    /// An operator must free some, or raise the limit.
    StorageFull,
    /// The server cannot answer now, such as while it starts or stops. A retry may succeed.
    Unavailable,
    /// The deadline passed.
    DeadlineExceeded,
    /// The client took too long to send its request.
    ClientTimeout,
    /// The client disconnected, or the work was stopped.
    Cancelled,
    /// Part of the protocol that Millpond does not implement.
    Unimplemented,
    /// A file or message is damaged.
    DataLoss,
    /// A bug of Millpond or of an engine, or a failure of the hardware.
    Internal,
}

/// An error: its kind, a message for people, the delay before the next try, and its cause.
///
/// Two errors are equal if they say the same. Their causes are not compared. Boxed so that
/// `Result<T>` stays small on the request path.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    retryable: bool,
    retry_after: Option<Duration>,
    source: Option<Arc<SourceError>>,
}

type SourceError = dyn std::error::Error + Send + Sync;

/// `std::result::Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! constructors {
    ($($name:ident => $kind:ident),* $(,)?) => {
        $(
            #[doc = concat!("Builds an error of [`ErrorKind::", stringify!($kind), "`].")]
            pub fn $name(message: impl Into<String>) -> Error {
                Error::new(ErrorKind::$kind, message)
            }
        )*
    };
}

impl Error {
    /// Builds an error of `kind`. `message` says what is wrong and, if possible, what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let message = message.into();
        let retryable = kind.is_retryable();
        Error(Box::new(Inner { kind, message, retryable, retry_after: None, source: None }))
    }

    constructors! {
        invalid => InvalidArgument,
        too_large => TooLarge,
        not_found => NotFound,
        precondition => FailedPrecondition,
        denied => PermissionDenied,
        exhausted => ResourceExhausted,
        storage_full => StorageFull,
        unavailable => Unavailable,
        deadline => DeadlineExceeded,
        cancelled => Cancelled,
        unimplemented => Unimplemented,
        data_loss => DataLoss,
        internal => Internal,
    }

    /// Builds the error of an operation on the file or directory `path`.
    pub fn io(path: &Path, error: &io::Error) -> Error {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            io::ErrorKind::OutOfMemory => ErrorKind::ResourceExhausted,
            // A limit of file sizes refuses writes as a full disk does.
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => ErrorKind::StorageFull,
            io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
                ErrorKind::InvalidArgument
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => ErrorKind::DataLoss,
            // EMFILE and ENFILE: too many files are open in the process, or in the system.
            _ if matches!(error.raw_os_error(), Some(23 | 24)) => ErrorKind::ResourceExhausted,
            _ => ErrorKind::Internal,
        };
        let source = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        let mut built =
            Error::new(kind, format!("{}: {error}", path.display())).with_source(source);
        // An operator can repair permissions, and the file stays the same.
        built.0.retryable |= kind == ErrorKind::PermissionDenied;
        built
    }

    /// Advises the caller to try again after `after`.
    pub fn with_retry_after(mut self, after: Duration) -> Error {
        self.0.retry_after = Some(after);
        self
    }

    /// Changes the category. Message, cause and retry advice stay as they are.
    pub fn with_kind(mut self, kind: ErrorKind) -> Error {
        self.0.kind = kind;
        self.0.retryable = kind.is_retryable();
        self
    }

    /// Sets the cause, which [`std::error::Error::source`] returns. The message stays as it is.
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Appends a colon and the text of `cause` to the message, and sets `cause` as the cause.
    pub fn caused_by(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.0.message = format!("{}: {cause}", self.0.message);
        self.with_source(cause)
    }

    /// Puts `context` and a colon before the message.
    pub fn context(mut self, context: impl std::fmt::Display) -> Error {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// Replaces each occurrence of `from` in the message by `to`.
    pub fn replaced(mut self, from: &str, to: &str) -> Error {
        self.0.message = self.0.message.replace(from, to);
        self
    }

    /// Returns the category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the text for people, without the kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the advised delay before the next try, if one is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns true if the same operation on the same input may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// Returns true if a limit or the server's state refused the operation. A limit frees itself
    /// while other work ends, so waiting for seconds may be enough.
    pub fn is_overload(&self) -> bool {
        matches!(self.0.kind, ErrorKind::ResourceExhausted | ErrorKind::Unavailable)
    }
}

impl ErrorKind {
    /// Returns true if time, and not another input, can make the operation succeed.
    fn is_retryable(self) -> bool {
        match self {
            ErrorKind::ResourceExhausted
            | ErrorKind::StorageFull
            | ErrorKind::Unavailable
            | ErrorKind::DeadlineExceeded
            | ErrorKind::ClientTimeout
            | ErrorKind::Cancelled
            | ErrorKind::Internal => true,
            ErrorKind::InvalidArgument
            | ErrorKind::TooLarge
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::FailedPrecondition
            | ErrorKind::PermissionDenied
            | ErrorKind::Unimplemented
            | ErrorKind::DataLoss => false,
        }
    }
}

impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        let kind_and_retry = |error: &Error| (error.0.kind, error.0.retry_after);
        kind_and_retry(self) == kind_and_retry(other) && self.0.message == other.0.message
    }
}

impl Eq for Error {}

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

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn context_keeps_everything_but_the_message() {
        for kind in ErrorKind::ALL {
            let plain = Error::new(kind, "full").with_retry_after(Duration::from_secs(1));
            let error = plain.clone().with_source(io::Error::other("disk")).context("b.log");
            let error = error.replaced("b.", "a.");
            assert_eq!(error.to_string(), "a.log: full");
            assert_eq!(error.kind(), kind);
            assert_eq!(error.retry_after(), plain.retry_after());
            assert_eq!(error.is_retryable(), plain.is_retryable());
            assert_eq!(error.source().unwrap().to_string(), "disk");
        }
    }

    #[test]
    fn another_kind_keeps_message_and_cause() {
        let delay = Duration::from_secs(1);
        let error = Error::invalid("wrong").caused_by(io::Error::other("disk"));
        let error = error.with_retry_after(delay).with_kind(ErrorKind::Unavailable);
        assert_eq!(error, Error::unavailable("wrong: disk").with_retry_after(delay));
        assert!(error.is_retryable());
        assert_eq!(error.source().unwrap().to_string(), "disk");
        assert!(!error.with_kind(ErrorKind::DataLoss).is_retryable());
    }

    #[test]
    fn a_cause_is_in_the_message_and_in_the_source() {
        let error = Error::exhausted("no thread").caused_by(io::Error::other("too many"));
        assert_eq!(error, Error::exhausted("no thread: too many"));
        assert_eq!(error.source().unwrap().to_string(), "too many");
    }

    #[test]
    fn a_limit_of_file_sizes_is_a_full_disk() {
        // ENOSPC, EDQUOT and EFBIG.
        for code in [28, 122, 27] {
            let error = Error::io(Path::new("a"), &io::Error::from_raw_os_error(code));
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        }
    }

    #[test]
    fn retryable_kinds_are_the_listed_ones() {
        let retryable = |kind: &ErrorKind| Error::new(*kind, "").is_retryable();
        let kinds: Vec<_> =
            ErrorKind::ALL.into_iter().filter(retryable).map(ErrorKind::name).collect();
        assert_eq!(
            kinds,
            [
                "resource_exhausted",
                "storage_full",
                "unavailable",
                "deadline_exceeded",
                "client_timeout",
                "cancelled",
                "internal",
            ]
        );
        for kind in ErrorKind::ALL {
            let error = Error::new(kind, "");
            assert!(error.is_retryable() || !error.is_overload(), "{kind:?}");
        }
    }

    #[test]
    fn file_errors_keep_code_and_kind() {
        let path = Path::new("a");
        let [none, denied, many] = [2, 13, 24].map(|code| {
            let error = Error::io(path, &io::Error::from_raw_os_error(code));
            let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
            assert_eq!(source.and_then(io::Error::raw_os_error), Some(code));
            error
        });
        assert_eq!((none.kind(), none.is_retryable()), (ErrorKind::NotFound, false));
        assert_eq!((denied.kind(), denied.is_retryable()), (ErrorKind::PermissionDenied, true));
        assert_eq!((many.kind(), many.is_overload()), (ErrorKind::ResourceExhausted, true));
        let torn = Error::io(path, &io::Error::new(io::ErrorKind::InvalidData, "torn"));
        assert_eq!((torn.kind(), torn.message()), (ErrorKind::DataLoss, "a: torn"));
        assert_eq!(torn.source().unwrap().to_string(), "torn");
    }
}
