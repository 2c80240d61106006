/* The C interface between Millpond and LibTorch, and nothing else of either.
 *
 * Every function that can fail returns one of the codes below and never throws; `millpond_torch_message` then says
 * why, until the next call on the same thread. Whoever changes a structure or a function's arguments raises
 * MILLPOND_TORCH_ABI here and in `crates/engine-torch/src/api.rs`, which refuses a library of another number.
 *
 * Element types are numbers of LibTorch's c10::ScalarType. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MILLPOND_TORCH_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

/* What a call returns. */
enum {
  MPT_OK = 0,
  /* LibTorch threw: the message has its words, from which the caller tells whose fault it is. */
  MPT_THREW = 1,
  /* The device that was asked for is not there. */
  MPT_NO_DEVICE = 2,
};

/* What forward takes in one place. */
enum {
  MPT_TENSOR = 0,
  MPT_INT = 1,
  MPT_FLOAT = 2,
  MPT_BOOL = 3,
  MPT_OTHER = 4,
};

/* A loaded module with a state of its own. */
typedef struct mpt_module mpt_module;
/* The tensors that one run gave. */
typedef struct mpt_answer mpt_answer;
/* One of them, on its own. */
typedef struct mpt_tensor mpt_tensor;
/* A module in the making. */
typedef struct mpt_builder mpt_builder;

/* Fills `buffer` with `bytes` bytes of the file from `offset`; gives 0 when it cannot. It must not unwind. */
typedef size_t (*mpt_read)(void *context, uint64_t offset, void *buffer, size_t bytes);

/* What to load, and where to. */
typedef struct {
  /* The file, through a callback that is used by the calling thread and only until the call returns. */
  void *context;
  mpt_read read;
  uint64_t bytes;
  /* Memory for parameters, which outlives the module and all its forks; null where there is none, and for a CUDA
   * device: what is loaded for one does not stay in the memory that it is read into. */
  void *arena;
  size_t arena_bytes;
  /* The number of a CUDA device, or -1 for the processor. */
  int32_t cuda;
} mpt_load;

/* What a loaded module is like. */
typedef struct {
  /* Bytes of the arena that were taken. */
  size_t arena_used;
  /* A run leaves something behind in the module. */
  int32_t stateful;
  /* Arguments of forward. */
  int32_t arguments;
  /* Outputs, or -1 where only a run shows how many there are. */
  int32_t results;
  /* The declaration of forward. */
  const char *declaration;
} mpt_description;

/* One argument of forward. The texts live as long as the module. */
typedef struct {
  const char *name;
  const char *type;
  int32_t kind;
  int32_t optional;
} mpt_argument;

/* One argument of a run. A scalar has rank 0 and 8 bytes (int64, float64) or one (bool). */
typedef struct {
  const void *data;
  const int64_t *dims;
  int32_t rank;
  int32_t dtype;
  /* Zero: left out, its default stands. */
  int32_t given;
} mpt_value;

/* One tensor of an answer; it lives as long as the answer, and after `mpt_answer_take` as long as what that gave. */
typedef struct {
  const char *name;
  const void *data;
  size_t bytes;
  const int64_t *dims;
  int32_t rank;
  int32_t dtype;
} mpt_view;

int32_t millpond_torch_abi(void);
/* LibTorch's version; static. */
const char *millpond_torch_version(void);
/* Why the last call on this thread failed. */
const char *millpond_torch_message(void);
/* Once a process, before anything else. */
int32_t millpond_torch_start(void);

int32_t mpt_module_load(const mpt_load *load, mpt_module **out);
/* A compiled package. It is native code, and runs with all the rights of the process. */
int32_t mpt_package_load(const char *path, int32_t cuda, mpt_module **out);
void mpt_module_describe(const mpt_module *module, mpt_description *out);
int32_t mpt_module_argument(const mpt_module *module, int32_t index, mpt_argument *out);
/* The name of an output; null past the last. */
const char *mpt_module_result(const mpt_module *module, int32_t index);
/* The same module with a state of its own, as the given one has it now. */
int32_t mpt_module_fork(const mpt_module *module, mpt_module **out);
void mpt_module_drop(mpt_module *module);

/* One run on the calling thread, with up to `threads` threads inside an operator. */
int32_t mpt_run(const mpt_module *module, const mpt_value *values, size_t count, int32_t threads, mpt_answer **out);
size_t mpt_answer_count(const mpt_answer *answer);
void mpt_answer_view(const mpt_answer *answer, size_t index, mpt_view *out);
/* Shares the tensor of that index with the caller. Null when memory is short. */
mpt_tensor *mpt_answer_take(const mpt_answer *answer, size_t index);
void mpt_answer_drop(mpt_answer *answer);
void mpt_tensor_drop(mpt_tensor *tensor);

int32_t mpt_builder_new(mpt_builder **out);
/* Adds a contiguous tensor whose elements the caller writes to `data` before saving. */
int32_t mpt_builder_tensor(mpt_builder *builder, const char *name, int32_t dtype, const int64_t *dims, int32_t rank,
                           int32_t buffer, void **data);
/* Adds a tensor that shares the elements of an earlier one, from element `start` on. */
int32_t mpt_builder_view(mpt_builder *builder, const char *name, const char *of, int64_t start, const int64_t *dims,
                         int32_t rank, int32_t buffer);
/* Compiles `source`, methods in TorchScript's language, and writes the module. */
int32_t mpt_builder_save(mpt_builder *builder, const char *source, const char *path);
void mpt_builder_drop(mpt_builder *builder);

#ifdef __cplusplus
}
#endif
