//! The models that benchmarks and the demo make for themselves: seeded, so that any parameter and any answer can
//! be computed again without the model.

pub(crate) mod cache;
pub(crate) mod ctr;
pub(crate) mod dense;
pub(crate) mod layers;
