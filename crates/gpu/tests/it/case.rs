//! Cases: rows, queries, allowed rows, and the answer by comparing everything and sorting.

use gpu::{Codes, Coding, Queries, Rows};
use proptest::prelude::*;

/// One search.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) dims: usize,
    pub(crate) k: usize,
    /// Multiprocessors that the division is made for.
    pub(crate) processors: usize,
    pub(crate) codes: Own,
    pub(crate) squares: Option<Vec<f32>>,
    pub(crate) allowed: Option<Vec<u64>>,
    /// Hits, one a query: only rows that come after them are found. Empty for all rows.
    pub(crate) after: Vec<(f32, u32)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Own {
    Bytes { rows: Vec<i8>, scales: Vec<f32>, queries: Vec<i8>, query_scales: Vec<f32> },
    Bfloats { rows: Vec<u16>, queries: Vec<f32> },
}

impl Case {
    /// Returns a case of a seed. A `spread` of 1 makes many equal costs, a larger one few.
    pub(crate) fn new(
        seed: u64,
        (coding, dims, rows, queries, k): (Coding, usize, usize, usize, usize),
        spread: i32,
        distances: bool,
        allow_one_in: u32,
    ) -> Case {
        let mut random = Random(seed);
        let mut codes = |count: usize| -> Vec<i32> {
            (0..count).map(|_| random.below(2 * spread + 1) - spread).collect()
        };
        let (row_codes, query_codes) = (codes(rows * dims), codes(queries * dims));
        let mut scales = |count: usize| -> Vec<f32> {
            (0..count).map(|_| [0.5, 0.25, 0.013, 0.0][random.below(4) as usize]).collect()
        };
        let own = match coding {
            Coding::Bytes => Own::Bytes {
                rows: row_codes.iter().map(|code| *code as i8).collect(),
                scales: scales(rows),
                queries: query_codes.iter().map(|code| *code as i8).collect(),
                query_scales: scales(queries),
            },
            // Whole numbers this small are exact in bfloat16, and so is every sum of their
            // products.
            Coding::Bfloats => Own::Bfloats {
                rows: row_codes
                    .iter()
                    .map(|code| ((*code as f32).to_bits() >> 16) as u16)
                    .collect(),
                queries: query_codes.iter().map(|code| *code as f32).collect(),
            },
        };
        // Damaged sections may hold any values. A row with an infinite cost or NaN is never found.
        let square = |value: i32| match value {
            0 => f32::INFINITY,
            1 => f32::NAN,
            value => value as f32 * 0.37,
        };
        let squares = distances.then(|| (0..rows).map(|_| square(random.below(50))).collect());
        let allowed = (allow_one_in > 0).then(|| {
            let mut words = vec![0_u64; rows.div_ceil(64)];
            (0..rows)
                .filter(|_| random.below(allow_one_in as i32) == 0)
                .for_each(|row| words[row / 64] |= 1 << (row % 64));
            words
        });
        let processors = 1 + seed as usize % 9;
        Case { dims, k, processors, codes: own, squares, allowed, after: Vec::new() }
    }

    /// Returns the search that continues behind the answer of this one.
    pub(crate) fn behind_its_answer(self) -> Case {
        let last = |hits: &Vec<(f32, u32)>| hits.last().copied().unwrap_or_default();
        let after = self.naive().iter().map(last).collect();
        Case { after, ..self }
    }

    /// Returns a case in which every row is better than the rows before, so a list accepts all.
    /// After the first two tiles, a list has one key too many to accept a whole tile.
    pub(crate) fn filling() -> Case {
        let rows = 3600_usize;
        let words = (0..rows.div_ceil(64))
            .map(|word| if word < 2 { u64::from(word == 0) } else { u64::MAX })
            .collect();
        let codes = Own::Bytes {
            rows: vec![1; rows],
            scales: (0..rows).map(|row| row as f32).collect(),
            queries: vec![1; 8],
            query_scales: vec![1.0; 8],
        };
        let allowed = Some(words);
        Case { dims: 1, k: 10, processors: 0, codes, squares: None, allowed, after: Vec::new() }
    }

    pub(crate) fn rows(&self) -> Rows<'_> {
        let codes = match &self.codes {
            Own::Bytes { rows, scales, .. } => Codes::Bytes { codes: rows, scales },
            Own::Bfloats { rows, .. } => Codes::Bfloats(rows),
        };
        Rows { dims: self.dims, codes, squares: self.squares.as_deref() }
    }

    pub(crate) fn queries(&self) -> Queries<'_> {
        match &self.codes {
            Own::Bytes { queries, query_scales, .. } => {
                Queries::Bytes { codes: queries, scales: query_scales }
            }
            Own::Bfloats { queries, .. } => Queries::Floats(queries),
        }
    }

    pub(crate) fn coding(&self) -> Coding {
        match self.codes {
            Own::Bytes { .. } => Coding::Bytes,
            Own::Bfloats { .. } => Coding::Bfloats,
        }
    }

    /// Returns the answer: all costs, sorted by cost and row.
    pub(crate) fn naive(&self) -> Vec<Vec<(f32, u32)>> {
        let dims = self.dims;
        let rows = self.rows().check().unwrap();
        let queries = self.queries().widened(self.coding(), dims).unwrap().count;
        let product = |query: usize, row: usize| match &self.codes {
            Own::Bytes { rows, scales, queries, query_scales } => {
                let pairs = rows[row * dims..(row + 1) * dims]
                    .iter()
                    .zip(&queries[query * dims..(query + 1) * dims]);
                let sum: i32 =
                    pairs.map(|(left, right)| i32::from(*left) * i32::from(*right)).sum();
                sum as f32 * query_scales[query] * scales[row]
            }
            Own::Bfloats { rows, queries } => {
                let pairs = rows[row * dims..(row + 1) * dims]
                    .iter()
                    .zip(&queries[query * dims..(query + 1) * dims]);
                pairs.map(|(left, right)| f32::from_bits(u32::from(*left) << 16) * right).sum()
            }
        };
        let allowed = |row: usize| {
            self.allowed.as_ref().is_none_or(|words| words[row / 64] >> (row % 64) & 1 == 1)
        };
        let of = |query: usize| {
            let costs = (0..rows).filter(|row| allowed(*row)).map(|row| {
                let product = product(query, row);
                let cost =
                    self.squares.as_ref().map_or(-product, |squares| squares[row] - 2.0 * product);
                (cost + 0.0, row as u32)
            });
            let mut costs: Vec<(f32, u32)> =
                costs.filter(|(cost, _)| *cost < f32::INFINITY).collect();
            let order = |one: &(f32, u32), other: &(f32, u32)| {
                one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))
            };
            costs.sort_by(order);
            if let Some(last) = self.after.get(query) {
                costs.retain(|hit| order(hit, last).is_gt());
            }
            costs.truncate(self.k);
            costs
        };
        (0..queries).map(of).collect()
    }
}

/// Cases of all kinds, small enough to be executed by hand.
pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let size = (
        prop::sample::select(vec![Coding::Bytes, Coding::Bfloats]),
        prop::sample::select(vec![1, 7, 16, 60, 64, 65, 128, 200, 300]),
        prop::sample::select(vec![1, 5, 127, 128, 129, 640, 1500]),
        1_usize..20,
        prop::sample::select(vec![1, 10, 100, 128, 129, 384, 400, 896, 900, 1920]),
    );
    (any::<u64>(), size, prop::sample::select(vec![1, 3, 120]), any::<bool>(), 0_u32..5).prop_map(
        |(seed, size, spread, distances, allow)| Case::new(seed, size, spread, distances, allow),
    )
}

/// Splitmix64 (Steele, Lea, Flood 2014): numbers for cases.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: i32) -> i32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as i32
    }
}
