//! Query in progress in the exact stage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};
use storage::page::{PAGE_BYTES, RecordPage};

use super::blocks::{BlockKey, BlockLookup, CachedBlock};
use super::cache::{RecordKey, RecordPosition};
use super::checked::Checked;
use super::fill::Filler;
use super::limits::{SearchLimits, SharedCaches};
use super::plan::{Extent, ReadPlan, WantedRecord};
use super::query::{ChunkProgress, RerankQuery, RerankResult, UNSCORED_MAX};
use super::ranking::Ranking;
use super::reads::{PendingRead, Reads};
use super::{Address, Records, RerankCandidate, Scorer};

/// Records to prefetch ahead of the record being scored.
const RECORD_AHEAD: usize = 1;
/// Page headers to prefetch ahead. A header locates the record in its page.
const PAGE_AHEAD: usize = 4;
/// Maximum cached records that wait to be scored. At this number, no candidates are fetched, so
/// another thread may take them.
const CACHED_MAX: usize = 64;
/// Bytes of a page header to prefetch: a cache line.
const LINE_BYTES: usize = 64;

/// Record that was read and is not scored yet.
type ArrivedRecord = (WantedRecord, Vec<u8>);

/// Reused buffers for records between read and score.
pub(super) type Buffers = Vec<Vec<u8>>;

/// A query in progress.
pub(super) struct Flight<'a, S: Scorer> {
    /// Number of the query in its searcher.
    pub(super) serial: u64,
    pub(super) query: RerankQuery<'a, S>,
    /// Verified pages of each segment whose file is in memory.
    in_place: Vec<Option<Arc<Checked>>>,
    ranking: Ranking,
    pub(super) ranked: RerankResult,
    /// True if all candidates have arrived.
    ended: bool,
    /// Candidates that have arrived.
    fetched: u64,
    chunk: Vec<RerankCandidate>,
    fresh: Vec<WantedRecord>,
    /// Reads to submit.
    plan: ReadPlan,
    /// Records to score: in memory, read, in a cached block, in the record cache.
    direct: VecDeque<WantedRecord>,
    arrived: VecDeque<ArrivedRecord>,
    kept: VecDeque<(WantedRecord, Arc<CachedBlock>)>,
    hits: VecDeque<(WantedRecord, RecordPosition)>,
    pub(super) in_flight: usize,
}

impl<'a, S: Scorer> Flight<'a, S> {
    pub(super) fn new(
        serial: u64,
        query: RerankQuery<'a, S>,
        shared: &SharedCaches,
    ) -> Flight<'a, S> {
        let in_place = |records: &Arc<dyn Records>| {
            let file = records.file();
            file.in_place().map(|_| shared.checked.of(file.as_ref()))
        };
        Flight {
            serial,
            in_place: query.segments.iter().map(in_place).collect(),
            ranking: Ranking::new(query.k),
            ranked: RerankResult::default(),
            ended: query.k == 0,
            fetched: 0,
            chunk: Vec::new(),
            fresh: Vec::new(),
            plan: ReadPlan::default(),
            direct: VecDeque::new(),
            arrived: VecDeque::new(),
            kept: VecDeque::new(),
            hits: VecDeque::new(),
            in_flight: 0,
            query,
        }
    }

    /// Fetches candidates until there are enough reads to submit. With `wait`, blocks until there
    /// are any.
    pub(super) fn gather(&mut self, limits: &SearchLimits, reads: &mut Reads, wait: bool) {
        let mut wait = wait;
        while !self.ended
            && self.plan.len() < limits.query_in_flight
            && self.direct.is_empty()
            && self.kept.len() + self.hits.len() < CACHED_MAX
            && !self.has_enough()
        {
            self.chunk.clear();
            let progress = self.query.candidates.next(&mut self.chunk, wait);
            let chunk = std::mem::take(&mut self.chunk);
            self.fetched += chunk.len() as u64;
            self.fresh.clear();
            for &candidate in &chunk {
                self.sort_in(candidate, limits, reads);
            }
            self.plan.add(&self.fresh, limits.joining());
            self.chunk = chunk;
            wait = false;
            match progress {
                ChunkProgress::More => {}
                ChunkProgress::Later => break,
                ChunkProgress::End => self.ended = true,
            }
        }
    }

    /// Returns true if many candidates have no score yet, and there is work on some of them.
    fn has_enough(&self) -> bool {
        let RerankResult { scored, skipped, damaged_count, .. } = &self.ranked;
        let unscored = self.fetched.saturating_sub(scored + skipped + damaged_count);
        let has_work = self.ready() + self.in_flight > 0 || !self.plan.is_empty();
        unscored >= self.query.candidates.unscored_max().min(UNSCORED_MAX) && has_work
    }

    /// Locates a candidate's record and queues it accordingly.
    fn sort_in(&mut self, candidate: RerankCandidate, limits: &SearchLimits, reads: &mut Reads) {
        if !self.open_to(candidate) {
            self.ranked.skipped += 1;
            return;
        }
        let address = match self.locate(candidate, limits) {
            Ok(address) => address,
            Err(error) => return self.ranked.damage(candidate, None, error),
        };
        let wanted = WantedRecord { candidate, address };
        if self.in_place.get(candidate.segment as usize).is_some_and(Option::is_some) {
            self.direct.push_back(wanted);
        } else if self.in_flight == 0 || !reads.attach(self.serial, wanted) {
            self.fresh.push(wanted);
        }
    }

    fn records(&self, candidate: RerankCandidate) -> Option<&dyn Records> {
        self.query.segments.get(candidate.segment as usize).map(AsRef::as_ref)
    }

    /// Returns the location of a candidate's record, after a check that it is in the file.
    fn locate(&self, candidate: RerankCandidate, limits: &SearchLimits) -> Result<Address> {
        let RerankCandidate { segment, row, .. } = candidate;
        let records = self.records(candidate).ok_or_else(|| {
            Error::internal(format!("a candidate of segment {segment}, which was not given"))
        })?;
        let address = records.locate(row).ok_or_else(|| {
            Error::data_loss(format!("segment {segment} has no record of row {row}"))
        })?;
        let bytes = address.bytes as usize;
        let end = address.offset.checked_add(u64::from(address.bytes));
        let whole = |bytes: u64| bytes.is_multiple_of(PAGE_BYTES as u64);
        let misplaced = bytes == 0
            || !whole(address.offset)
            || !whole(bytes as u64)
            || bytes > limits.read_bytes_max
            || end.is_none_or(|end| end > records.file().bytes());
        if misplaced {
            return Err(Error::data_loss(format!(
                "the record of row {row} is said to lie at {} + {bytes}, which is not in the file or too long",
                address.offset
            )));
        }
        Ok(address)
    }

    /// Returns true if a candidate can still become a hit.
    fn open_to(&self, candidate: RerankCandidate) -> bool {
        self.ranking.open_to(self.query.scorer.bound(candidate.coarse))
    }

    /// Returns true if reads should be submitted now. Then half of the allowed ones are done, so
    /// that they are submitted in batches.
    pub(super) fn wants_reads(&self, limits: &SearchLimits) -> bool {
        !self.plan.is_empty() && self.outstanding() <= limits.query_in_flight / 2
    }

    pub(super) fn may_read(&self, limits: &SearchLimits) -> bool {
        self.outstanding() < limits.query_in_flight
    }

    /// Counts reads in flight and records that wait. Otherwise a slow scorer fills the memory.
    fn outstanding(&self) -> usize {
        self.in_flight + self.arrived.len()
    }

    /// Takes the next useful read from the plan and returns its tag and extent. Cached records are
    /// queued to be scored if that avoids the read.
    pub(super) fn next_read(
        &mut self,
        shared: &SharedCaches,
        reads: &mut Reads,
        filler: &mut Filler,
    ) -> Option<(u64, Extent)> {
        loop {
            let (planned, wanted) = self.plan.peek()?;
            let scorer = &self.query.scorer;
            let open = |wanted: &&WantedRecord| {
                self.ranking.open_to(scorer.bound(wanted.candidate.coarse))
            };
            self.fresh.clear();
            self.fresh.extend(wanted.iter().filter(open));
            self.ranked.skipped += (wanted.len() - self.fresh.len()) as u64;
            self.plan.advance();
            if !planned.apart {
                self.take_from_blocks(shared, filler);
            }
            let looked_up = reads.lookups.pays_for(self.fresh.len());
            let single = self.fresh.len() == 1;
            if let Some(cache) = shared.cache.as_ref().filter(|_| looked_up) {
                let segments = &self.query.segments;
                let hits = &mut self.hits;
                self.fresh.retain(|&wanted| {
                    let found = key(segments, wanted.candidate).and_then(|key| cache.find(key));
                    hits.extend(found.map(|found| (wanted, found)));
                    found.is_none()
                });
                if single {
                    reads.lookups.record_lookup(self.fresh.is_empty());
                }
            }
            // Sorted by page, so the read starts at the first.
            let Some(first) = self.fresh.first() else { continue };
            let offset = first.address.offset;
            let past =
                self.fresh.iter().map(|w| w.address.offset + u64::from(w.address.bytes)).max()?;
            let extent = Extent { offset, bytes: (past - offset) as u32, ..planned };
            let tag = reads.begin(self.serial, extent, &self.fresh, looked_up);
            self.in_flight += 1;
            self.ranked.reads += 1;
            self.ranked.read_bytes += u64::from(extent.bytes);
            return Some((tag, extent));
        }
    }

    /// Queues the records of `fresh` (one segment, sorted by page) that lie in cached blocks.
    fn take_from_blocks(&mut self, shared: &SharedCaches, filler: &mut Filler) {
        let Some(blocks) = &shared.blocks else { return };
        let segments = &self.query.segments;
        let kept = &mut self.kept;
        let mut last: Option<(BlockKey, Option<Arc<CachedBlock>>)> = None;
        self.fresh.retain(|&wanted| {
            let WantedRecord { candidate, address } = wanted;
            let Some(records) = segments.get(candidate.segment as usize) else { return true };
            let key = BlockKey::of(records.file().id(), address.offset);
            if last.as_ref().is_none_or(|(of, _)| *of != key) {
                let block = match blocks.lookup(key, filler.is_idle()) {
                    BlockLookup::Here(block) => Some(block),
                    BlockLookup::Fill => {
                        filler.begin(key, records.file());
                        None
                    }
                    BlockLookup::Absent => None,
                };
                last = Some((key, block));
            }
            let block = last.as_ref().and_then(|(_, block)| block.as_ref());
            match block.filter(|block| block.part(address.offset, address.bytes).is_some()) {
                Some(block) => kept.push_back((wanted, block.clone())),
                None => return true,
            }
            false
        });
    }

    /// Takes the result of a read.
    pub(super) fn arrive(
        &mut self,
        read: &PendingRead,
        result: Result<&[u8]>,
        shared: &SharedCaches,
        buffers: &mut Buffers,
    ) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let one_page = read.wanted.iter().all(|wanted| wanted.address.offset == read.extent.offset);
        match result {
            Ok(bytes) => self.unpack(read, bytes, shared, buffers),
            // A bad page must not exclude its neighbours, so each is read alone.
            Err(_) if !one_page => self.plan.add_apart(&read.wanted),
            Err(error) => {
                for wanted in &read.wanted {
                    self.ranked.damage(
                        wanted.candidate,
                        Some(wanted.address.offset),
                        error.clone(),
                    );
                }
            }
        }
    }

    /// Copies the wanted records out of a completed read. Caches them if they were looked up in the
    /// record cache.
    fn unpack(
        &mut self,
        read: &PendingRead,
        bytes: &[u8],
        shared: &SharedCaches,
        buffers: &mut Buffers,
    ) {
        let mut page: Option<(u64, Result<RecordPage<'_>>)> = None;
        let cache = shared.cache.as_ref().filter(|_| read.looked_up);
        for &wanted in &read.wanted {
            let WantedRecord { candidate, address } = wanted;
            if page.as_ref().is_none_or(|(offset, _)| *offset != address.offset) {
                let start = address.offset.saturating_sub(read.extent.offset) as usize;
                let part = bytes.get(start..start + address.bytes as usize).unwrap_or(&[]);
                page = Some((address.offset, verified(part, address, self.records(candidate))));
            }
            let record = match &page {
                Some((_, Ok(page))) => page.record(address.slot).ok_or_else(|| no_slot(address)),
                Some((_, Err(error))) => Err(error.clone()),
                None => continue,
            };
            match record {
                Ok(record) => {
                    let mut buffer = buffers.pop().unwrap_or_default();
                    buffer.clear();
                    buffer.extend_from_slice(record);
                    if let (Some(cache), Some(key)) = (cache, key(&self.query.segments, candidate))
                    {
                        cache.insert(key, record);
                    }
                    self.arrived.push_back((wanted, buffer));
                }
                Err(error) => self.ranked.damage(candidate, Some(address.offset), error),
            }
        }
    }

    /// Counts the records that can be scored now.
    pub(super) fn ready(&self) -> usize {
        self.arrived.len() + self.direct.len() + self.kept.len() + self.hits.len()
    }

    /// Counts the records that were read and wait.
    pub(super) fn arrived(&self) -> usize {
        self.arrived.len()
    }

    /// Scores one record. Returns false if none is ready. Records that were read come first,
    /// because they hold up further reads. Cached ones fill the time of reads in flight.
    pub(super) fn score_one(
        &mut self,
        shared: &SharedCaches,
        buffers: &mut Buffers,
        scratch: &mut S::Scratch,
    ) -> bool {
        if let Some((wanted, record)) = self.arrived.pop_front() {
            judge(
                &self.query.scorer,
                &mut self.ranking,
                &mut self.ranked,
                wanted,
                &record,
                scratch,
            );
            buffers.push(record);
        } else if let Some(wanted) = self.direct.pop_front() {
            self.score_in_place(wanted, scratch);
        } else if let Some((wanted, block)) = self.kept.pop_front() {
            self.score_in_block(wanted, &block, shared, scratch);
        } else if let Some((wanted, found)) = self.hits.pop_front() {
            let mut buffer = buffers.pop().unwrap_or_default();
            if shared.cache.as_ref().is_some_and(|cache| cache.copy(found, &mut buffer)) {
                self.ranked.cached += 1;
                judge(
                    &self.query.scorer,
                    &mut self.ranking,
                    &mut self.ranked,
                    wanted,
                    &buffer,
                    scratch,
                );
            } else {
                // The cache evicted the entry after the look-up.
                self.plan.add_apart(&[wanted]);
            }
            buffers.push(buffer);
        } else {
            return false;
        }
        true
    }

    /// Scores a record in mapped memory, and prefetches later ones. Verifies its page once.
    fn score_in_place(&mut self, wanted: WantedRecord, scratch: &mut S::Scratch) {
        fetch_page(self.direct.get(PAGE_AHEAD).and_then(|&ahead| in_place(&self.query, ahead)));
        if let Some(&ahead) = self.direct.get(RECORD_AHEAD) {
            fetch_record(in_place(&self.query, ahead), ahead.address);
        }
        let WantedRecord { candidate, address } = wanted;
        let part = in_place(&self.query, wanted).unwrap_or(&[]);
        let checked = self.in_place.get(candidate.segment as usize).and_then(Option::as_ref);
        let records = self.records(candidate);
        // A lost page may have been verified before.
        let has_lost = records.is_some_and(|records| records.file().lost_pages() > 0);
        let page = if !has_lost && checked.is_some_and(|checked| checked.is(address.offset)) {
            RecordPage::trusted(part)
        } else {
            let page = verified(part, address, records);
            if let (Ok(_), Some(checked)) = (&page, checked) {
                checked.set(address.offset);
            }
            page
        };
        match page.and_then(|page| page.record(address.slot).ok_or_else(|| no_slot(address))) {
            Ok(record) => {
                judge(
                    &self.query.scorer,
                    &mut self.ranking,
                    &mut self.ranked,
                    wanted,
                    record,
                    scratch,
                );
            }
            Err(error) => self.ranked.damage(candidate, Some(address.offset), error),
        }
    }

    /// Scores a record of a cached block in place.
    fn score_in_block(
        &mut self,
        wanted: WantedRecord,
        block: &CachedBlock,
        shared: &SharedCaches,
        scratch: &mut S::Scratch,
    ) {
        if let Some((ahead, block)) = self.kept.get(PAGE_AHEAD) {
            fetch_page(block.part(ahead.address.offset, ahead.address.bytes));
        }
        if let Some((ahead, block)) = self.kept.get(RECORD_AHEAD) {
            fetch_record(block.part(ahead.address.offset, ahead.address.bytes), ahead.address);
        }
        let WantedRecord { candidate, address } = wanted;
        let part = block.part(address.offset, address.bytes).unwrap_or(&[]);
        let page = if block.is_checked(address.offset) {
            RecordPage::trusted(part)
        } else {
            let page = verified(part, address, self.records(candidate));
            if page.is_ok() {
                block.set_checked(address.offset);
            }
            page
        };
        match page.as_ref().ok().and_then(|page| page.record(address.slot)) {
            Some(record) => {
                self.ranked.cached += 1;
                judge(
                    &self.query.scorer,
                    &mut self.ranking,
                    &mut self.ranked,
                    wanted,
                    record,
                    scratch,
                );
            }
            // The medium reports the error, unless the damage happened in transit.
            None => {
                let file = self.records(candidate).map(|records| records.file().id());
                if let (Some(blocks), Some(file)) = (&shared.blocks, file) {
                    blocks.drop_block(BlockKey::of(file, address.offset));
                }
                self.plan.add_apart(&[wanted]);
            }
        }
    }

    /// Returns true if the result is final. Does not wait for reads that cannot change it.
    pub(super) fn is_done(&self, reads: &Reads) -> bool {
        self.ended
            && self.ready() == 0
            && self.plan.is_empty()
            && (self.in_flight == 0
                || !reads
                    .of(self.serial)
                    .flat_map(|read| &read.wanted)
                    .any(|w| self.open_to(w.candidate)))
    }

    /// Returns true if more candidates may follow.
    pub(super) fn expects_more(&self) -> bool {
        !self.ended
    }

    /// Ends the query if its deadline has passed.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.query.deadline.is_some_and(|deadline| deadline <= now) {
            self.ranked.late = true;
            self.end_early();
        }
    }

    /// Ends the query with the hits so far.
    pub(super) fn end_early(&mut self) {
        self.ranked.partial |=
            !self.ended || self.ready() > 0 || !self.plan.is_empty() || self.in_flight > 0;
        self.ended = true;
        self.plan.clear();
        self.direct.clear();
        self.arrived.clear();
        self.kept.clear();
        self.hits.clear();
        self.in_flight = 0;
    }

    /// Returns the tag and the result.
    pub(super) fn finish(mut self, reads: &Reads) -> (u64, RerankResult) {
        self.ranked.skipped +=
            reads.of(self.serial).map(|read| read.wanted.len() as u64).sum::<u64>();
        self.ranked.hits = self.ranking.into_hits();
        (self.query.tag, self.ranked)
    }
}

fn key(segments: &[Arc<dyn Records>], candidate: RerankCandidate) -> Option<RecordKey> {
    let records = segments.get(candidate.segment as usize)?;
    Some(RecordKey { file: records.file().id(), row: candidate.row })
}

/// Scores a record and ranks it, unless its bound shows that it cannot become a hit.
fn judge<S: Scorer>(
    scorer: &S,
    ranking: &mut Ranking,
    ranked: &mut RerankResult,
    wanted: WantedRecord,
    record: &[u8],
    scratch: &mut S::Scratch,
) {
    let WantedRecord { candidate, .. } = wanted;
    if !ranking.open_to(scorer.bound(candidate.coarse)) {
        ranked.skipped += 1;
        return;
    }
    match scorer.score(record, scratch) {
        Ok(score) => {
            ranked.scored += 1;
            ranking.add(candidate, score);
        }
        // The page is intact, even if the scorer refuses the record.
        Err(error) => ranked.damage(candidate, None, error),
    }
}

/// Returns the page of a record in memory.
fn in_place<'q, S: Scorer>(
    query: &'q RerankQuery<'_, S>,
    wanted: WantedRecord,
) -> Option<&'q [u8]> {
    let whole = query.segments.get(wanted.candidate.segment as usize)?.file().in_place()?;
    let start = wanted.address.offset as usize;
    whole.get(start..start + wanted.address.bytes as usize)
}

/// Prefetches the header of a page.
fn fetch_page(page: Option<&[u8]>) {
    if let Some(page) = page {
        kernels::prefetch(page.get(..LINE_BYTES).unwrap_or(page));
    }
}

/// Prefetches a record whose page header is cached.
fn fetch_record(page: Option<&[u8]>, address: Address) {
    let page = page.and_then(|page| RecordPage::trusted(page).ok());
    if let Some(record) = page.and_then(|page| page.record(address.slot)) {
        kernels::prefetch(record);
    }
}

/// Verifies a page: its checksum, and that it is the requested one.
fn verified<'b>(
    bytes: &'b [u8],
    address: Address,
    records: Option<&dyn Records>,
) -> Result<RecordPage<'b>> {
    let page = RecordPage::open(bytes)?;
    let start = records.and_then(Records::pages_start);
    let wanted = start.map(|start| address.offset.wrapping_sub(start) / PAGE_BYTES as u64);
    if wanted.is_some_and(|wanted| wanted != u64::from(page.number())) {
        return Err(Error::data_loss(format!(
            "the page at {} says that it is number {}: the device returned another page",
            address.offset,
            page.number()
        )));
    }
    Ok(page)
}

fn no_slot(address: Address) -> Error {
    Error::data_loss(format!("the page at {} has no record {}", address.offset, address.slot))
}
