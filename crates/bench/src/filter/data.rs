//! The generated collection of `bench filter`, its queries and their true answers.

use kernels::TopK;
use kernels::float::l2;
use loadgen::random::RandomSequence;
use loadgen::stats::ratio;
use search::filter::{Condition, Filter, Match, Range};
use serde::Serialize;
use serde_json::{Map, Value};

use super::HITS;

/// Number of rows of a cluster, on average.
const CLUSTER_ROWS: usize = 1000;
/// Distance of a vector from its cluster's centre in each dimension, relative to that between
/// centres.
const SPREAD: f64 = 0.6;

/// Vectors and payloads.
pub(super) struct FilterData {
    pub(super) dims: usize,
    pub(super) base: Vec<f32>,
    pub(super) tenants: Vec<u32>,
    pub(super) scores: Vec<f64>,
    pub(super) clusters: Vec<u32>,
    centres: Vec<f64>,
    tenant_count: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RowCondition {
    /// The row's tenant.
    Tenant(u32),
    /// The row's score is at least the first and below the second.
    Score(f64, f64),
    /// The row's cluster is one of these, ascending.
    Clusters(Vec<u32>),
}

/// Query with a filter that no other query has.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FilteredQuery {
    pub(super) vector: Vec<f32>,
    pub(super) condition: RowCondition,
    /// Number of rows that meet the condition.
    pub(super) allowed: u64,
    /// Nearest [`HITS`] rows that meet the condition, by squared distance.
    pub(super) nearest: Vec<u32>,
}

/// Queries of one selectivity.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FilterCase {
    pub(super) name: &'static str,
    pub(super) queries: Vec<FilteredQuery>,
}

impl FilterData {
    /// Generates rows around random centres.
    pub(super) fn generate(rows: usize, dims: usize, tenant_count: usize) -> FilterData {
        let mut random = RandomSequence::new(41);
        let count = (rows / CLUSTER_ROWS).max(8);
        let centres: Vec<f64> = (0..count * dims).map(|_| normal(&mut random)).collect();
        let mut data = FilterData {
            dims,
            base: Vec::with_capacity(rows * dims),
            tenants: Vec::with_capacity(rows),
            scores: Vec::with_capacity(rows),
            clusters: Vec::with_capacity(rows),
            centres,
            tenant_count,
        };
        for _ in 0..rows {
            let (cluster, vector) = data.vector(&mut random);
            data.base.extend_from_slice(&vector);
            data.clusters.push(cluster);
            data.tenants.push((random.bits() % tenant_count as u64) as u32);
            data.scores.push(random.unit());
        }
        data
    }

    pub(super) fn rows(&self) -> usize {
        self.tenants.len()
    }

    /// Returns a random cluster and a vector near its centre.
    fn vector(&self, random: &mut RandomSequence) -> (u32, Vec<f32>) {
        let cluster = (random.bits() % self.cluster_count() as u64) as usize;
        let centre = &self.centres[cluster * self.dims..][..self.dims];
        let vector = centre.iter().map(|value| (value + SPREAD * normal(random)) as f32).collect();
        (cluster as u32, vector)
    }

    fn cluster_count(&self) -> usize {
        self.centres.len() / self.dims
    }

    /// Returns the payload of a row.
    pub(super) fn payload(&self, row: usize) -> Map<String, Value> {
        let mut payload = Map::new();
        payload.insert("tenant".into(), tenant_name(self.tenants[row]).into());
        payload.insert("score".into(), self.scores[row].into());
        payload.insert("cluster".into(), self.clusters[row].into());
        payload
    }

    /// Returns the queries of all selectivities, and last those on half of the clusters.
    pub(super) fn cases(&self, queries: usize) -> Vec<FilterCase> {
        let mut random = RandomSequence::new(43);
        // A filter on one of 10,000 tenants has the next smaller share.
        let tenant = if self.tenant_count == 10_000 { "0.01%" } else { "tenant" };
        let names = [tenant, "0.1%", "1%", "10%", "50%", "half_clusters"];
        let case = |name| FilterCase {
            name,
            queries: (0..queries).map(|at| self.query(name, at, &mut random)).collect(),
        };
        names.map(case).into()
    }

    /// Returns query number `at` of the case `name`, with its condition.
    fn query(&self, name: &str, at: usize, random: &mut RandomSequence) -> FilteredQuery {
        let mut score = |width: f64| {
            let from = random.unit() * (1.0 - width);
            RowCondition::Score(from, from + width)
        };
        let condition = match name {
            "tenant" | "0.01%" => RowCondition::Tenant((at % self.tenant_count) as u32),
            "0.1%" => score(0.001),
            "1%" => score(0.01),
            "10%" => score(0.1),
            "50%" => score(0.5),
            _ => {
                let clusters = 0..self.cluster_count() as u32;
                RowCondition::Clusters(
                    clusters.filter(|_| random.bits().is_multiple_of(2)).collect(),
                )
            }
        };
        let (_, vector) = self.vector(random);
        let mut top = TopK::new(HITS);
        let mut allowed = 0;
        for row in (0..self.rows()).filter(|row| self.meets(*row, &condition)) {
            allowed += 1;
            top.push(l2(&vector, &self.base[row * self.dims..][..self.dims]), row as u32);
        }
        let nearest = top.sorted().map(|(_, row)| row).collect();
        FilteredQuery { vector, condition, allowed, nearest }
    }

    /// Returns true if the row meets the condition.
    pub(super) fn meets(&self, row: usize, condition: &RowCondition) -> bool {
        match condition {
            RowCondition::Tenant(tenant) => self.tenants[row] == *tenant,
            RowCondition::Score(from, to) => (*from..*to).contains(&self.scores[row]),
            RowCondition::Clusters(clusters) => clusters.binary_search(&self.clusters[row]).is_ok(),
        }
    }

    /// Returns the nearest rows of each query of a case without its filter.
    pub(super) fn unfiltered(&self, case: &FilterCase) -> Vec<Vec<u32>> {
        case.queries.iter().map(|query| self.nearest(&query.vector)).collect()
    }

    /// Returns the nearest rows of a vector without a filter.
    fn nearest(&self, vector: &[f32]) -> Vec<u32> {
        let mut top = TopK::new(HITS);
        for (row, values) in (0..).zip(self.base.chunks_exact(self.dims)) {
            top.push(l2(vector, values), row);
        }
        top.sorted().map(|(_, row)| row).collect()
    }
}

impl FilterCase {
    /// Returns the mean share of the rows that its filters allow.
    pub(super) fn allowed_share(&self, rows: usize) -> f64 {
        let allowed: u64 = self.queries.iter().map(|query| query.allowed).sum();
        ratio(allowed as f64, (self.queries.len() * rows) as f64)
    }
}

impl RowCondition {
    pub(super) fn filter(&self) -> Filter {
        let condition = match self {
            RowCondition::Tenant(tenant) => Condition::Match {
                key: "tenant".into(),
                matching: Match::Value(tenant_name(*tenant).into()),
            },
            RowCondition::Score(from, to) => {
                let range = Range { gte: Some(*from), lt: Some(*to), ..Range::default() };
                Condition::Range { key: "score".into(), range }
            }
            RowCondition::Clusters(clusters) => {
                let values: Vec<Value> = clusters.iter().map(|it| Value::from(*it)).collect();
                Condition::Match { key: "cluster".into(), matching: Match::Any(values.into()) }
            }
        };
        Filter { must: vec![condition], ..Filter::default() }
    }
}

fn tenant_name(tenant: u32) -> String {
    format!("tenant-{tenant}")
}

/// Returns an approximately normal number: the sum of twelve uniform ones.
fn normal(random: &mut RandomSequence) -> f64 {
    (0..12).map(|_| random.unit()).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_and_filters_agree() {
        let data = FilterData::generate(2000, 4, 100);
        let cases = data.cases(3);
        assert_eq!(cases.len(), 6);
        let share = |name: &str| {
            cases.iter().find(|case| case.name == name).map(|case| case.allowed_share(2000))
        };
        assert!(share("tenant").is_some_and(|share| (0.005..0.02).contains(&share)));
        assert!(share("50%").is_some_and(|share| (0.4..0.6).contains(&share)));
        for query in cases.iter().flat_map(|case| &case.queries) {
            let filter = query.condition.filter();
            let met = (0..2000)
                .filter(|row| filter.matches(*row as u64, &Value::Object(data.payload(*row))));
            assert_eq!(met.count() as u64, query.allowed, "{:?}", query.condition);
            assert!(query.nearest.iter().all(|row| data.meets(*row as usize, &query.condition)));
        }
        let conditions: Vec<&RowCondition> =
            cases.iter().flat_map(|case| &case.queries).map(|it| &it.condition).collect();
        for (at, condition) in conditions.iter().enumerate() {
            assert!(!conditions[..at].contains(condition), "{condition:?} is not new");
        }
        assert_eq!(FilterData::generate(1000, 4, 10_000).cases(1)[0].name, "0.01%");
    }
}
