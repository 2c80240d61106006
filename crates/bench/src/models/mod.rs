//! Models that only benchmarks need. They are seeded, so any parameter and any answer can be
//! computed again without the model.

pub(crate) mod answers;
pub(crate) mod conv;
pub(crate) mod dense;
pub(crate) mod small;
pub(crate) mod workload;
