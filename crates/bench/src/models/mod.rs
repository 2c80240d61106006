//! The models that benchmarks and the demo make for themselves: seeded, so that any parameter and any answer can
//! be computed again without the model. And the one that is fetched, which reads text.

pub(crate) mod answers;
pub(crate) mod cache;
pub(crate) mod conv;
pub(crate) mod ctr;
pub(crate) mod dense;
pub(crate) mod layers;
pub(crate) mod module;
pub(crate) mod ocr;
pub(crate) mod small;
pub(crate) mod workload;
