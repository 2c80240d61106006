//! An engine that can open its models in worker processes.

use std::path::Path;
use std::sync::Arc;

use base::Result;
use engine::{Capabilities, Engine, LoadRequest, Session};

use crate::Isolation;
use crate::session::IsolatedSession;

/// Engine around another one. Models with [`engine::SessionOptions::isolate`] are opened in a
/// worker process each, others by the inner engine itself.
pub struct IsolatingEngine {
    engine: Arc<dyn Engine>,
    isolation: Arc<Isolation>,
}

impl IsolatingEngine {
    /// Wraps `engine`. The worker process must have an engine of the same name.
    pub fn new(engine: Arc<dyn Engine>, isolation: Arc<Isolation>) -> IsolatingEngine {
        IsolatingEngine { engine, isolation }
    }
}

impl Engine for IsolatingEngine {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn version(&self) -> String {
        self.engine.version()
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn arena_bytes(&self, graph: &Path) -> Result<usize> {
        self.engine.arena_bytes(graph)
    }

    fn open_library(&self) -> Result<()> {
        self.engine.open_library()
    }

    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
        if !request.options.isolate {
            return self.engine.load(request);
        }
        let session = IsolatedSession::open(&self.isolation, &*self.engine, request)?;
        Ok(Box::new(session))
    }
}
