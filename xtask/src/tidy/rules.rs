//! The rules: permitted dependencies, crates with unsafe code, lengths, words.

/// Lines of a crate that [`CRATE_LINES`] does not list, tests and generated code not counted.
pub(crate) const CRATE_LINES_MAX: usize = 12_000;
/// Crates with another limit than [`CRATE_LINES_MAX`].
pub(crate) const CRATE_LINES: &[(&str, usize)] =
    &[("bench", 22_000), ("search", 29_000), ("server", 9_000)];
/// Lines of a file, tests not counted.
pub(crate) const FILE_LINES_MAX: usize = 800;
/// Lines of a function, from `fn` to its closing brace.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;
/// Lines of ARCHITECTURE.md.
pub(crate) const ARCHITECTURE_LINES_MAX: usize = 200;

/// The crates of `crates/` and the crates each may depend on. A new edge or crate is a decision.
/// Write it into docs/adr first, and then here.
pub(crate) const EDGES: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("metrics", &[]),
    ("os", &["base"]),
    ("telemetry", &["base", "metrics"]),
    ("memory", &["base", "os"]),
    ("engine", &["base", "memory", "os"]),
    ("isolate", &["base", "metrics", "memory", "os", "engine"]),
    ("engine-onnx", &["base", "memory", "os", "engine"]),
    ("engine-torch", &["base", "memory", "os", "engine"]),
    ("engine-tensorflow", &["base", "memory", "os", "engine"]),
    ("signal", &["base"]),
    ("audio", &["base", "signal"]),
    ("rollout", &["base", "engine"]),
    ("lifecycle", &["base", "memory", "os", "engine", "rollout"]),
    ("model-store", &["base", "metrics", "os", "engine", "lifecycle"]),
    ("import", &["base", "engine", "lifecycle", "model-store", "protocol"]),
    ("schedule", &["base", "os", "engine"]),
    ("inference", &["base", "metrics", "os", "telemetry", "engine", "lifecycle", "schedule"]),
    ("protocol", &["base"]),
    ("kernels", &["base"]),
    ("cluster", &[]),
    ("storage", &["base", "memory", "os"]),
    ("matching", &["base", "kernels"]),
    ("gpu", &["base"]),
    ("coarse", &["base", "kernels", "gpu"]),
    ("filter", &["base"]),
    ("search", &["base", "memory", "os", "storage", "kernels", "matching", "coarse", "filter"]),
    ("vision", &["base", "matching"]),
    ("backup", &["base", "metrics", "os", "model-store", "storage", "search"]),
    ("transport", &["base", "metrics", "os"]),
    (
        "observe",
        &[
            "base",
            "metrics",
            "memory",
            "os",
            "telemetry",
            "engine",
            "isolate",
            "lifecycle",
            "schedule",
            "inference",
            "protocol",
            "coarse",
            "search",
            "transport",
        ],
    ),
    // metrics for tests only.
    ("http-client", &["base", "metrics", "transport"]),
    ("etcd", &["base", "http-client", "transport"]),
    // http-client for tests only.
    ("fleet", &["base", "metrics", "lifecycle", "http-client", "etcd"]),
    ("qdrant-grpc", &["base", "protocol"]),
    ("api-qdrant", &["base", "metrics", "os", "search", "backup", "transport"]),
    (
        "api-models",
        &["base", "os", "engine", "lifecycle", "schedule", "inference", "protocol", "transport"],
    ),
    (
        "api-audio",
        &[
            "base",
            "metrics",
            "os",
            "engine",
            "audio",
            "lifecycle",
            "schedule",
            "inference",
            "transport",
        ],
    ),
    (
        "image-features",
        &[
            "base",
            "engine",
            "lifecycle",
            "schedule",
            "api-qdrant",
            "matching",
            "search",
            "vision",
            "transport",
        ],
    ),
    (
        "api-images",
        &[
            "base",
            "metrics",
            "os",
            "inference",
            "image-features",
            "api-qdrant",
            "matching",
            "model-store",
            "search",
            "vision",
            "transport",
            // For tests only.
            "memory",
            "engine",
            "lifecycle",
            "schedule",
        ],
    ),
    (
        "console",
        &[
            "base",
            "metrics",
            "os",
            "engine",
            "inference",
            "lifecycle",
            "schedule",
            "coarse",
            "search",
            "observe",
            "transport",
        ],
    ),
    ("cluster-log", &["base", "cluster", "model-store"]),
    (
        "cluster-node",
        &[
            "base",
            "metrics",
            "os",
            "cluster",
            "cluster-log",
            "http-client",
            "etcd",
            "model-store",
            "search",
            "backup",
            "api-images",
            "api-qdrant",
            "transport",
        ],
    ),
    (
        "cluster-root",
        &[
            "base",
            "metrics",
            "os",
            "cluster",
            "cluster-node",
            "http-client",
            "search",
            "api-images",
            "api-qdrant",
            "transport",
        ],
    ),
    (
        "cluster-images",
        &[
            "base",
            "metrics",
            "os",
            "cluster-node",
            "cluster-root",
            "http-client",
            "model-store",
            "search",
            "api-images",
            "api-qdrant",
            "matching",
            "transport",
            // For tests only.
            "cluster",
        ],
    ),
    (
        "server",
        &[
            "base",
            "metrics",
            "memory",
            "os",
            "engine",
            "engine-onnx",
            "engine-torch",
            "engine-tensorflow",
            "isolate",
            "audio",
            "lifecycle",
            "model-store",
            "schedule",
            "inference",
            "protocol",
            "telemetry",
            "import",
            "observe",
            "console",
            "api-models",
            "api-audio",
            "api-images",
            "api-qdrant",
            "qdrant-grpc",
            "backup",
            "http-client",
            "etcd",
            "fleet",
            "cluster-node",
            "cluster-root",
            "cluster-images",
            "coarse",
            "search",
            "transport",
            // For tests only.
            "vision",
        ],
    ),
    (
        "loadgen",
        &["base", "os", "engine", "engine-onnx", "engine-torch", "engine-tensorflow", "protocol"],
    ),
    ("tune", &["base", "os", "engine", "engine-onnx", "protocol", "loadgen"]),
    ("verify", &["base", "protocol", "loadgen"]),
    (
        "doctor",
        &[
            "base",
            "memory",
            "os",
            "engine",
            "engine-onnx",
            "engine-torch",
            "engine-tensorflow",
            "gpu",
            "search",
        ],
    ),
    ("demo", &["base", "os", "engine", "engine-onnx", "engine-torch", "protocol", "loadgen"]),
    (
        "bench",
        &[
            "base",
            "memory",
            "os",
            "engine",
            "engine-onnx",
            "audio",
            "kernels",
            "storage",
            "matching",
            "coarse",
            "search",
            "backup",
            "vision",
            "loadgen",
            "tune",
            "demo",
        ],
    ),
    (
        "command-line",
        &["base", "os", "engine", "audio", "lifecycle", "model-store", "gpu", "loadgen", "import"],
    ),
    (
        "client-commands",
        &["base", "engine", "audio", "model-store", "protocol", "loadgen", "command-line"],
    ),
    (
        "cli",
        &[
            "base",
            "os",
            "engine",
            "engine-onnx",
            "engine-tensorflow",
            "audio",
            "lifecycle",
            "model-store",
            "protocol",
            "gpu",
            "server",
            "loadgen",
            "tune",
            "import",
            "verify",
            "doctor",
            "demo",
            "command-line",
            "client-commands",
            // For its tests only: docs/commands.md lists the commands of both programs.
            "bench",
        ],
    ),
];

/// Returns the limit of a crate's lines.
pub(crate) fn crate_lines_max(krate: &str) -> usize {
    let row = CRATE_LINES.iter().find(|(name, _)| *name == krate);
    row.map_or(CRATE_LINES_MAX, |(_, max)| *max)
}

/// Returns true if the crate may contain unsafe code.
pub(crate) fn may_hold_unsafe(krate: &str) -> bool {
    matches!(krate, "memory" | "os" | "storage" | "kernels" | "gpu" | "fuzz")
        || krate.starts_with("engine-")
}

/// Functions that may be longer than [`FUNCTION_LINES_MAX`]: path, name, reason.
pub(crate) const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[];

/// Returns true for generated code, which has no limit of length.
pub(crate) fn is_generated(path: &str) -> bool {
    path.contains("/generated/")
}

/// Returns true if a path holds only tests.
pub(crate) fn is_test(path: &str) -> bool {
    path.contains("/tests/")
}

/// Returns true if a path holds a conformance suite, which counts as tests in the report.
pub(crate) fn is_conformance(path: &str) -> bool {
    path.contains("/src/conformance")
}

/// Host names of package registries. No file may contain them, because the machine's settings
/// choose the registry. Each is in two halves, so that this file passes its own rule.
pub(crate) const REGISTRY_HOSTS: &[(&str, &str)] = &[
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("crates", ".io"),
    ("npmjs", ".org"),
    ("npmjs", ".com"),
    ("proxy.golang", ".org"),
    ("maven", ".org"),
    ("deb.debian", ".org"),
];

/// Files in which a tool writes such names.
pub(crate) const REGISTRY_HOSTS_EXEMPT: &[&str] = &["Cargo.lock"];

/// Columns of a comment line.
pub(crate) const COMMENT_COLUMNS_MAX: usize = 100;

/// Modules of a crate that may reach each other.
pub(crate) const MODULE_RING_MAX: usize = 3;

/// Words that no comment uses (STYLE.md): each has a plain replacement.
pub(crate) const REFUSED_WORDS: &[&str] = &[
    "nobody",
    "somebody",
    "whoever",
    "whichever",
    "wherever",
    "whatever",
    "that which",
    "those that",
    "those who",
    "as long as",
    "gives way",
    "give way",
    "comes to nothing",
    "in a hurry",
    "patience",
    "buried",
    "the doors",
    "a door",
    "the door",
    "company",
];

/// Words that no doc comment begins with.
pub(crate) const REFUSED_BEGINNINGS: &[&str] =
    &["What", "Whether", "Who", "Whose", "Where", "Which", "How", "Those", "Whoever", "Whatever"];
