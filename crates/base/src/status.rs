//! The mapping from an error's kind to its status in HTTP, gRPC and metrics.

use crate::ErrorKind;

struct Statuses {
    name: &'static str,
    http: u16,
    grpc: i32,
}

impl ErrorKind {
    /// Every kind once.
    pub const ALL: [ErrorKind; 15] = [
        ErrorKind::InvalidArgument,
        ErrorKind::TooLarge,
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::FailedPrecondition,
        ErrorKind::PermissionDenied,
        ErrorKind::ResourceExhausted,
        ErrorKind::StorageFull,
        ErrorKind::Unavailable,
        ErrorKind::DeadlineExceeded,
        ErrorKind::ClientTimeout,
        ErrorKind::Cancelled,
        ErrorKind::Unimplemented,
        ErrorKind::DataLoss,
        ErrorKind::Internal,
    ];

    /// Returns the kind in snake case, as in metrics and responses.
    pub fn name(self) -> &'static str {
        self.statuses().name
    }

    /// Returns the HTTP status of an error of this kind.
    pub fn http_status(self) -> u16 {
        self.statuses().http
    }

    /// Returns the gRPC status code of an error of this kind.
    pub fn grpc_code(self) -> i32 {
        self.statuses().grpc
    }

    fn statuses(self) -> Statuses {
        let (name, http, grpc) = match self {
            ErrorKind::InvalidArgument => ("invalid_argument", 400, 3),
            ErrorKind::TooLarge => ("too_large", 413, 8),
            ErrorKind::NotFound => ("not_found", 404, 5),
            ErrorKind::AlreadyExists => ("already_exists", 409, 6),
            ErrorKind::FailedPrecondition => ("failed_precondition", 409, 9),
            ErrorKind::PermissionDenied => ("permission_denied", 403, 7),
            ErrorKind::ResourceExhausted => ("resource_exhausted", 429, 8),
            ErrorKind::StorageFull => ("storage_full", 507, 8),
            ErrorKind::Unavailable => ("unavailable", 503, 14),
            ErrorKind::DeadlineExceeded => ("deadline_exceeded", 504, 4),
            ErrorKind::ClientTimeout => ("client_timeout", 408, 4),
            ErrorKind::Cancelled => ("cancelled", 499, 1),
            ErrorKind::Unimplemented => ("unimplemented", 501, 12),
            ErrorKind::DataLoss => ("data_loss", 500, 15),
            ErrorKind::Internal => ("internal", 500, 13),
        };
        Statuses { name, http, grpc }
    }
}
