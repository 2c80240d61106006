//! Copies between a tensor and a larger tensor that holds it at the origin of every axis.

/// Copies a tensor of shape `small` into `large`, whose shape is at least as large on every axis.
/// Both are row-major, with `width` bytes an element. Other elements of `large` keep their value.
pub(crate) fn embed(
    large: &mut [u8],
    large_shape: &[usize],
    small: &[u8],
    shape: &[usize],
    width: usize,
) {
    walk(large_shape, shape, width, |at_large, at_small, bytes| {
        large[at_large..at_large + bytes].copy_from_slice(&small[at_small..at_small + bytes]);
    });
}

/// Returns a copy of the elements of `large` that [`embed`] wrote for a tensor of shape `shape`.
pub(crate) fn corner(
    large: &[u8],
    large_shape: &[usize],
    shape: &[usize],
    width: usize,
) -> Vec<u8> {
    let mut small = Vec::with_capacity(shape.iter().product::<usize>() * width);
    walk(large_shape, shape, width, |at_large, _, bytes| {
        small.extend_from_slice(&large[at_large..at_large + bytes]);
    });
    small
}

/// Calls `copy(offset in large, offset in small, bytes)` for each contiguous run, in the small
/// tensor's order.
fn walk(large: &[usize], small: &[usize], width: usize, mut copy: impl FnMut(usize, usize, usize)) {
    debug_assert!(large.len() == small.len() && small.iter().zip(large).all(|(s, l)| s <= l));
    if small.contains(&0) {
        return;
    }
    // Axes from `inner` on are contiguous in both: all sizes after it are equal.
    let inner = small.iter().zip(large).rposition(|(s, l)| s != l).unwrap_or(0);
    let run = small.get(inner..).map_or(1, |axes| axes.iter().product::<usize>()) * width;
    let outer = &small[..inner.min(small.len())];
    // Distance in the large tensor between neighbours on each outer axis.
    let stride = |axis: usize| large[axis + 1..].iter().product::<usize>() * width;
    let strides: Vec<usize> = (0..outer.len()).map(stride).collect();
    let mut index = vec![0usize; outer.len()];
    let mut at_small = 0;
    loop {
        let at_large = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        copy(at_large, at_small, run);
        at_small += run;
        let Some(axis) = (0..outer.len()).rev().find(|&axis| index[axis] + 1 < outer[axis]) else {
            return;
        };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the offset of index (i, j, ..) in a row-major tensor, element by element.
    fn offset(shape: &[usize], index: &[usize]) -> usize {
        shape.iter().zip(index).fold(0, |offset, (size, i)| offset * size + i)
    }

    fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
        shape.iter().fold(vec![vec![]], |all, &size| {
            all.iter()
                .flat_map(|index| (0..size).map(move |i| [index.clone(), vec![i]].concat()))
                .collect()
        })
    }

    proptest! {
        #[test]
        fn embedding_equals_the_naive_copy(
            axes in prop::collection::vec((0usize..4, 0usize..3), 0..6),
            width in prop::sample::select(vec![1usize, 2, 4, 8]),
        ) {
            let small: Vec<usize> = axes.iter().map(|(size, _)| *size).collect();
            let large: Vec<usize> = axes.iter().map(|(size, more)| size + more).collect();
            let count = small.iter().product::<usize>();
            let source: Vec<u8> = (0..count * width).map(|i| (i % 250) as u8 + 1).collect();
            let mut naive = vec![0u8; large.iter().product::<usize>() * width];
            for index in indices(&small) {
                let (from, to) = (offset(&small, &index) * width, offset(&large, &index) * width);
                naive[to..to + width].copy_from_slice(&source[from..from + width]);
            }
            let mut embedded = vec![0u8; naive.len()];
            embed(&mut embedded, &large, &source, &small, width);
            prop_assert_eq!(&embedded, &naive);
            prop_assert_eq!(corner(&embedded, &large, &small, width), source);
        }
    }
}
