//! The coarse filter on a GPU, where there is one.
