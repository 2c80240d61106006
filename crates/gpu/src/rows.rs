//! Rows on the device and the search over them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Error, ErrorKind, Result};
use cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, LaunchConfig, PinnedHostSlice,
    PushKernelArg, sys,
};

use crate::budget::RowReservation;
use crate::device::{Gpu, driver_error};
use crate::plan::{Coding, DIMS_MAX, LaunchPlan, PIECE_BYTES, ROWS_MAX, TILE_ROWS, key, parts};
use crate::queue::{QueryBatch, SearchQueue};

/// Bytes prepared on the host per transfer if rows must be widened.
const STAGING_BYTES: usize = 16 << 20;

/// Codes of rows, row by row.
#[derive(Clone, Copy, Debug)]
pub enum Codes<'a> {
    /// Symmetric bytes, `rows * dims`, with the scale of each row.
    Bytes {
        /// The codes.
        codes: &'a [i8],
        /// A scale for each row.
        scales: &'a [f32],
    },
    /// The bits of `rows * dims` bfloat16.
    Bfloats(&'a [u16]),
}

/// Rows to upload.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Number of values of a row.
    pub dims: usize,
    /// Codes of all rows, one row after the other.
    pub codes: Codes<'a>,
    /// Squared lengths, one a row: costs are then squared distances without the query's part.
    /// `None`: costs are negated products.
    pub squares: Option<&'a [f32]>,
}

/// Queries of one search, row by row.
#[derive(Clone, Copy, Debug)]
pub enum Queries<'a> {
    /// Queries over rows of bytes: `queries * dims` codes, and a scale for each query.
    Bytes {
        /// The codes.
        codes: &'a [i8],
        /// A scale for each query.
        scales: &'a [f32],
    },
    /// Queries over rows of bfloat16: `queries * dims` values.
    Floats(&'a [f32]),
}

/// Memory that holds rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPlacement {
    /// On the device if they fit, else in pinned memory if allowed.
    Auto,
    /// The device's memory.
    Device,
    /// Host memory that the device reads through its bus.
    Pinned,
}

/// Codes in memory that the device reads.
enum DeviceCodes {
    Device(CudaSlice<u8>),
    Pinned(PinnedHostSlice<u8>),
}

/// Rows that the device can search.
pub struct DeviceRows {
    gpu: Arc<Gpu>,
    codes: DeviceCodes,
    scales: Option<CudaSlice<f32>>,
    squares: Option<CudaSlice<f32>>,
    coding: Coding,
    dims: usize,
    rows: usize,
    /// Reservation of the bytes of the codes. It ends after the codes are freed.
    reservation: RowReservation,
    queue: SearchQueue,
}

/// `Shape` in `kernels.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct KernelShape {
    rows: u32,
    row_pieces: u32,
    queries: u32,
    k: u32,
    tiles_per_part: u32,
    distances: u32,
}

// SAFETY: six 32-bit numbers without padding, laid out as in the kernels.
unsafe impl DeviceRepr for KernelShape {}

/// Synchronizes the device on drop, so that the queue has no work that uses memory about
/// to be freed.
struct SynchronizeOnDrop<'a>(&'a CudaStream);

impl Drop for SynchronizeOnDrop<'_> {
    fn drop(&mut self) {
        // If this fails, so did an earlier call, which reported it.
        let _ = self.0.synchronize();
    }
}

impl Rows<'_> {
    fn coding(&self) -> Coding {
        match self.codes {
            Codes::Bytes { .. } => Coding::Bytes,
            Codes::Bfloats(_) => Coding::Bfloats,
        }
    }

    /// Returns the number of rows.
    ///
    /// # Errors
    /// `InvalidArgument` if lengths do not fit together or are over their maxima.
    pub fn check(&self) -> Result<usize> {
        let (values, scales) = match self.codes {
            Codes::Bytes { codes, scales } => (codes.len(), Some(scales.len())),
            Codes::Bfloats(codes) => (codes.len(), None),
        };
        let rows = values / self.dims.max(1);
        let whole = self.dims > 0
            && self.dims <= DIMS_MAX
            && rows * self.dims == values
            && rows <= ROWS_MAX;
        let fitting = scales.is_none_or(|count| count == rows);
        if whole && rows > 0 && fitting && self.squares.is_none_or(|squares| squares.len() == rows)
        {
            return Ok(rows);
        }
        Err(Error::invalid(format!(
            "{values} codes of {} dimensions, their scales and squares are not the same number of rows, or more than \
             {ROWS_MAX} rows or {DIMS_MAX} dimensions",
            self.dims
        )))
    }

    /// Writes rows `range` as the kernels read them: each widened with zeros to whole pieces.
    pub fn write_widened(&self, range: std::ops::Range<usize>, out: &mut Vec<u8>) {
        let width = self.coding().row_pieces(self.dims) * PIECE_BYTES;
        out.clear();
        for row in range {
            let start = out.len();
            let values = row * self.dims..(row + 1) * self.dims;
            match self.codes {
                Codes::Bytes { codes, .. } => {
                    out.extend(codes[values].iter().map(|code| *code as u8))
                }
                Codes::Bfloats(codes) => {
                    out.extend(codes[values].iter().flat_map(|code| code.to_le_bytes()))
                }
            }
            out.resize(start + width, 0);
        }
    }
}

/// Queries as the kernels read them.
#[derive(Debug)]
pub struct WidenedQueries {
    /// Number of queries.
    pub count: usize,
    /// Values of all queries. Zeros fill each query up to the width of a row.
    pub bytes: Vec<u8>,
}

impl Queries<'_> {
    /// Converts the queries to the form that the kernels read.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not whole queries of the type that `coding` needs.
    pub fn widened(&self, coding: Coding, dims: usize) -> Result<WidenedQueries> {
        let count = match (self, coding) {
            (Queries::Bytes { codes, scales }, Coding::Bytes)
                if codes.len() == scales.len() * dims =>
            {
                scales.len()
            }
            (Queries::Floats(values), Coding::Bfloats) if values.len().is_multiple_of(dims) => {
                values.len() / dims
            }
            _ => {
                return Err(Error::invalid(format!(
                    "the queries are not whole ones of {dims} dimensions"
                )));
            }
        };
        let mut bytes = Vec::new();
        for query in 0..count {
            let values = query * dims..(query + 1) * dims;
            let width = match self {
                Queries::Bytes { codes, .. } => {
                    bytes.extend(codes[values].iter().map(|code| *code as u8));
                    coding.row_pieces(dims) * PIECE_BYTES
                }
                Queries::Floats(floats) => {
                    bytes.extend(floats[values].iter().flat_map(|value| value.to_le_bytes()));
                    coding.row_pieces(dims) * PIECE_BYTES * 2
                }
            };
            bytes.resize((query + 1) * width, 0);
        }
        Ok(WidenedQueries { count, bytes })
    }
}

impl Gpu {
    /// Uploads rows to memory that the device reads.
    ///
    /// # Errors
    /// As [`Rows::check`]; `ResourceExhausted` if [`crate::GpuOptions`] or the device leave no
    /// room; `Internal` with the driver's message.
    pub fn upload(self: &Arc<Gpu>, rows: &Rows, placement: RowPlacement) -> Result<DeviceRows> {
        self.check()?;
        let count = rows.check()?;
        let _synchronized = SynchronizeOnDrop(&self.stream);
        let bytes = rows.coding().code_bytes(count, rows.dims);
        let needed = rows.coding().device_bytes(count, rows.dims, rows.squares.is_some());
        let fits = placement != RowPlacement::Pinned && needed <= self.device_bytes_left()?;
        let reserved = if fits { self.device_budget.reserve(bytes) } else { None };
        let on_device = match reserved {
            Some(reservation) => match self.send(rows, count, bytes) {
                Ok(codes) => Some((reservation, DeviceCodes::Device(codes))),
                // Another program, or another thread, has taken the memory meanwhile.
                Err(error) if error.kind() == ErrorKind::ResourceExhausted => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        let (reservation, codes) = match (on_device, placement) {
            (Some(held), _) => held,
            (None, RowPlacement::Device) => {
                return Err(Error::exhausted(format!(
                    "{bytes} bytes of codes do not fit the GPU's memory"
                )));
            }
            (None, RowPlacement::Auto | RowPlacement::Pinned) => {
                let reservation = self.reserve_pinned(bytes)?;
                (reservation, DeviceCodes::Pinned(self.pin(rows, count, bytes)?))
            }
        };
        let send =
            |values: &[f32]| self.stream.clone_htod(values).map_err(|error| self.failed(error));
        let scales = match rows.codes {
            Codes::Bytes { scales, .. } => Some(send(scales)?),
            Codes::Bfloats(_) => None,
        };
        let squares = rows.squares.map(send).transpose()?;
        self.stream.synchronize().map_err(|error| self.failed(error))?;
        Ok(DeviceRows {
            gpu: self.clone(),
            codes,
            scales,
            squares,
            coding: rows.coding(),
            dims: rows.dims,
            rows: count,
            reservation,
            queue: SearchQueue::default(),
        })
    }

    /// Copies codes to the device, one staging buffer at a time.
    fn send(&self, rows: &Rows, count: usize, bytes: u64) -> Result<CudaSlice<u8>> {
        let width = rows.coding().row_pieces(rows.dims) * PIECE_BYTES;
        // SAFETY: every byte is written below before a kernel is started.
        let kept = unsafe { self.stream.alloc::<u8>(bytes as usize) };
        let mut kept = kept.map_err(|error| self.failed(error))?;
        let step = (STAGING_BYTES / width).max(1);
        let mut staging = Vec::new();
        for start in (0..count).step_by(step) {
            let end = count.min(start + step);
            rows.write_widened(start..end, &mut staging);
            let mut place = kept.try_slice_mut(start * width..end * width).ok_or_else(|| {
                Error::internal("rows do not fit into the memory that was reserved for them")
            })?;
            self.stream.memcpy_htod(&staging, &mut place).map_err(|error| self.failed(error))?;
            // The loop writes the staging buffer again.
            self.stream.synchronize().map_err(|error| self.failed(error))?;
        }
        Ok(kept)
    }

    fn reserve_pinned(&self, bytes: u64) -> Result<RowReservation> {
        self.pinned_budget.reserve(bytes).ok_or_else(|| {
            let left = self.pinned_budget.left();
            Error::exhausted(format!(
                "{bytes} bytes of codes fit neither the GPU's memory nor the {left} bytes left for pinned memory"
            ))
        })
    }

    /// Copies codes to pinned host memory that the device sees.
    fn pin(&self, rows: &Rows, count: usize, bytes: u64) -> Result<PinnedHostSlice<u8>> {
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: every byte is written below before it is read.
        let kept = unsafe { self.context.alloc_pinned_with_flags::<u8>(bytes as usize, flags) };
        let mut kept = kept.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::exhausted(format!(
                "the system does not pin {bytes} bytes of memory for codes; lower --gpu-pinned"
            )),
            _ => self.failed(error),
        })?;
        let width = rows.coding().row_pieces(rows.dims) * PIECE_BYTES;
        let step = (STAGING_BYTES / width).max(1);
        let mut staging = Vec::new();
        let out = kept.as_mut_slice().map_err(|error| self.failed(error))?;
        for (at, out) in out.chunks_mut(step * width).enumerate() {
            rows.write_widened(at * step..count.min((at + 1) * step), &mut staging);
            out.copy_from_slice(&staging);
        }
        Ok(kept)
    }
}

impl DeviceRows {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of values of a row.
    pub fn dims(&self) -> usize {
        self.dims
    }

    /// Returns the number of bytes of the codes, without scales and squared lengths.
    pub fn bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Returns true if the codes are in pinned host memory, and not in that of the device.
    pub fn is_pinned(&self) -> bool {
        matches!(self.codes, DeviceCodes::Pinned(_))
    }

    /// Returns the `k` rows of least cost for each query, best first, equal costs by row. Returns
    /// fewer if fewer rows are allowed or have a finite cost. Row `r` is allowed if bit `r % 64` of
    /// word `r / 64` of `allowed` is set; `None` allows all. Searches of other threads share one
    /// pass over the codes if they allow all rows and arrive while a search runs.
    ///
    /// # Errors
    /// `InvalidArgument` if queries or the bitmap do not fit the rows, or for more than
    /// [`crate::K_MAX`] hits or [`crate::QUERIES_MAX`] queries; `ResourceExhausted` if the device
    /// has no memory left; `Internal` with the driver's message; `Unavailable` after such a
    /// failure.
    pub fn search(
        &self,
        queries: &Queries,
        k: usize,
        allowed: Option<&[u64]>,
    ) -> Result<Vec<Vec<(f32, u32)>>> {
        self.search_after(queries, k, allowed, &[])
    }

    /// Returns the `k` best rows that come after a hit: `after` has one for each query, or is empty
    /// for the best rows of all. Otherwise as [`DeviceRows::search`].
    ///
    /// # Errors
    /// As [`DeviceRows::search`]; `InvalidArgument` for another number of hits than of queries.
    pub fn search_after(
        &self,
        queries: &Queries,
        k: usize,
        allowed: Option<&[u64]>,
        after: &[(f32, u32)],
    ) -> Result<Vec<Vec<(f32, u32)>>> {
        self.gpu.check()?;
        let WidenedQueries { count, bytes: widened } = queries.widened(self.coding, self.dims)?;
        if !after.is_empty() && after.len() != count {
            let hits = after.len();
            return Err(Error::invalid(format!("{hits} hits to continue after, {count} queries")));
        }
        if allowed.is_some_and(|words| words.len() < self.rows.div_ceil(64)) {
            return Err(Error::invalid(format!(
                "the bitmap has fewer bits than there are rows, {}",
                self.rows
            )));
        }
        // A request that this check refuses must not fail the searches of other threads.
        LaunchPlan::new(self.rows, count, k, self.gpu.processors)?;
        let scales = match queries {
            Queries::Bytes { scales, .. } => scales.to_vec(),
            Queries::Floats(_) => Vec::new(),
        };
        let after = after.iter().map(|(cost, row)| key(*cost, *row)).collect();
        let batch = QueryBatch { count, widened, scales, after, k };
        let found = match allowed {
            Some(words) => self.rank(&batch, Some(words))?,
            None => self.queue.search(
                batch,
                |batch| self.rank(batch, None),
                |others| {
                    self.gpu.joined.fetch_add(others as u64, Ordering::Relaxed);
                },
            )?,
        };
        Ok(found
            .chunks_exact(k)
            .map(|keys| keys.iter().map_while(|key| parts(*key)).collect())
            .collect())
    }

    /// Returns the `count * k` best keys.
    fn rank(&self, batch: &QueryBatch, allowed: Option<&[u64]>) -> Result<Vec<u64>> {
        let gpu = &self.gpu;
        let QueryBatch { count, k, .. } = *batch;
        let plan = LaunchPlan::new(self.rows, count, k, gpu.processors)?;
        let failed = |error| gpu.failed(error);
        let stream = &gpu.stream;
        let mut found = vec![0; count * k];
        // Declared after the host's memory and before the device's: also after an error, no copy
        // reads or writes memory that was freed.
        let _synchronized = SynchronizeOnDrop(stream);
        let device_queries = stream.clone_htod(&batch.widened).map_err(failed)?;
        let device_scales = optional(stream, &batch.scales).map_err(failed)?;
        let bitmap = optional(stream, allowed.unwrap_or_default()).map_err(failed)?;
        let after = optional(stream, &batch.after).map_err(failed)?;
        // SAFETY: the kernels below write every key of both buffers before it is read: each block
        // `k` keys for each of its queries, then `k` keys for each query.
        let (lists, best) = unsafe {
            (stream.alloc::<u64>(count * plan.parts * k), stream.alloc::<u64>(count * k))
        };
        let lists = lists.map_err(failed)?;
        let best = best.map_err(failed)?;
        let shape = KernelShape {
            rows: self.rows as u32,
            row_pieces: self.coding.row_pieces(self.dims) as u32,
            queries: count as u32,
            k: k as u32,
            tiles_per_part: plan.tiles_per_part as u32,
            distances: u32::from(self.squares.is_some()),
        };
        let codes = self.codes_address()?;
        let row_scales = address(self.scales.as_ref(), stream);
        let squares = address(self.squares.as_ref(), stream);
        let query_scales = address(device_scales.as_ref(), stream);
        let bitmap = address(bitmap.as_ref(), stream);
        let after = address(after.as_ref(), stream);
        let mut launch = stream.launch_builder(gpu.rank(self.coding, plan.group)?);
        launch.arg(&shape).arg(&codes).arg(&row_scales).arg(&squares);
        launch.arg(&device_queries).arg(&query_scales).arg(&bitmap);
        launch.arg(&after).arg(&lists);
        // SAFETY: the arguments match RANK in kernels.cu in order and type; buffers have the sizes
        // that the kernel computes from the same shape and the same division (tested against each
        // other), and are freed in the order of the stream.
        unsafe { launch.launch(grid(plan.parts, plan.groups)) }.map_err(failed)?;
        let lists_each = plan.parts as u32;
        let kept = k as u32;
        let mut launch = stream.launch_builder(&gpu.merge);
        launch.arg(&lists).arg(&lists_each).arg(&kept).arg(&best);
        // SAFETY: as above, for merge_lists: `lists` has `lists_each` lists of `kept` keys a
        // query, each sorted by the kernel before, and `best` has `kept` keys a query.
        unsafe { launch.launch(grid(count, 1)) }.map_err(failed)?;
        stream.memcpy_dtoh(&best, &mut found).map_err(failed)?;
        stream.synchronize().map_err(failed)?;
        Ok(found)
    }

    /// Returns the address at which the device reads the codes.
    fn codes_address(&self) -> Result<u64> {
        match &self.codes {
            DeviceCodes::Device(codes) => Ok(address(Some(codes), &self.gpu.stream)),
            DeviceCodes::Pinned(codes) => {
                let host = codes.as_ptr().map_err(|error| self.gpu.failed(error))?;
                let mut address: sys::CUdeviceptr = 0;
                // SAFETY: the memory was allocated with the flag that makes it visible. The copies
                // before bound its context to this thread.
                let code = unsafe {
                    sys::cuMemHostGetDevicePointer_v2(&mut address, host.cast_mut().cast(), 0)
                };
                code.result().map_err(driver_error)?;
                Ok(address)
            }
        }
    }
}

impl std::fmt::Debug for DeviceRows {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("DeviceRows").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Drop for DeviceRows {
    fn drop(&mut self) {
        // The codes are freed in the context of this thread, which may never have searched. Without
        // a context they stay allocated, and the next call finds the failure.
        if let Err(error) = self.gpu.context.bind_to_thread() {
            // This error is an earlier failure of a call that returns no error. The context was not
            // bound.
            self.gpu.failed(error);
            let _ = self.gpu.context.bind_to_thread();
        }
    }
}

/// Copies values to the device; `None` if there are none.
fn optional<T: DeviceRepr>(
    stream: &Arc<CudaStream>,
    values: &[T],
) -> std::result::Result<Option<CudaSlice<T>>, DriverError> {
    if values.is_empty() { Ok(None) } else { stream.clone_htod(values).map(Some) }
}

/// Returns the address of a buffer; 0 if there is none.
fn address<T>(buffer: Option<&CudaSlice<T>>, stream: &CudaStream) -> u64 {
    buffer.map_or(0, |buffer| buffer.device_ptr(stream).0)
}

fn grid(width: usize, height: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (width as u32, height as u32, 1),
        block_dim: (TILE_ROWS as u32, 1, 1),
        shared_mem_bytes: 0,
    }
}
