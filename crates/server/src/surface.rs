//! The part of the server that a listener offers.

/// Routes and calls that a listener offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Surface {
    /// All routes and calls.
    #[default]
    Whole,
    /// All routes and calls, at the admin port, which can have an address of its own.
    Admin,
    /// Everything except admin calls, metrics and pages, which the admin port offers.
    Public {
        /// The admin port.
        admin_port: u16,
    },
}

impl Surface {
    /// Returns the admin port, if admin calls are there and not here.
    pub(crate) fn elsewhere(self) -> Option<u16> {
        match self {
            Surface::Whole | Surface::Admin => None,
            Surface::Public { admin_port } => Some(admin_port),
        }
    }
}
