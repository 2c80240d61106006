/* The C interface between Millpond and LibTorch. It includes no header of either.
 *
 * A function that can fail returns one of the codes below and never throws. `millpond_torch_message` then returns the
 * reason, until the next call on the same thread. A change of a structure or of a function's arguments raises
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

/* Return code of a call. */
enum {
  MPT_OK = 0,
  /* LibTorch threw an exception. The caller derives the kind of error from its message. */
  MPT_THREW = 1,
  /* The requested device does not exist. */
  MPT_NO_DEVICE = 2,
};

/* Kind of an argument of forward. */
enum {
  MPT_TENSOR = 0,
  MPT_INT = 1,
  MPT_FLOAT = 2,
  MPT_BOOL = 3,
  MPT_OTHER = 4,
};

/* A loaded module with its own state. */
typedef struct mpt_module mpt_module;
/* Output tensors of one run. */
typedef struct mpt_answer mpt_answer;
/* One output tensor, shared with the caller. */
typedef struct mpt_tensor mpt_tensor;
/* A module under construction. */
typedef struct mpt_builder mpt_builder;

/* Fills `buffer` with `bytes` bytes of the file from `offset`. Returns 0 on failure. Must not unwind. */
typedef size_t (*mpt_read)(void *context, uint64_t offset, void *buffer, size_t bytes);

/* Source and destination of a load. */
typedef struct {
  /* The file, read through a callback on the calling thread until the call returns. */
  void *context;
  mpt_read read;
  uint64_t bytes;
  /* Memory for parameters, which outlives the module and all its forks. Null without an arena, and for a CUDA device,
   * whose parameters do not stay in the memory that they are read into. */
  void *arena;
  size_t arena_bytes;
  /* The number of a CUDA device, or -1 for the processor. */
  int32_t cuda;
} mpt_load;

/* Description of a loaded module. */
typedef struct {
  /* Bytes allocated from the arena. */
  size_t arena_used;
  /* True if a run changes the module. */
  int32_t stateful;
  /* Arguments of forward. */
  int32_t arguments;
  /* Number of outputs, or -1 if only a run shows it. */
  int32_t results;
  /* Declaration of forward. */
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
  /* 0 if the argument is absent and has its default. */
  int32_t given;
} mpt_value;

/* One tensor of an answer. Valid while the answer exists, or after `mpt_answer_take` while its result exists. */
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
/* Returns the reason of the last failure on this thread. */
const char *millpond_torch_message(void);
/* Must be the first call of a process, and called once. LibTorch's threads inherit the priority of the calling one. */
int32_t millpond_torch_start(void);

int32_t mpt_module_load(const mpt_load *load, mpt_module **out);
/* Loads a compiled package. It is native code and runs with all rights of the process. */
int32_t mpt_package_load(const char *path, int32_t cuda, mpt_module **out);
void mpt_module_describe(const mpt_module *module, mpt_description *out);
int32_t mpt_module_argument(const mpt_module *module, int32_t index, mpt_argument *out);
/* Returns the name of an output, null after the last one. */
const char *mpt_module_result(const mpt_module *module, int32_t index);
/* Copies a module with its current state; the parameters are shared. */
int32_t mpt_module_fork(const mpt_module *module, mpt_module **out);
void mpt_module_drop(mpt_module *module);

/* Runs the module on the calling thread, with up to `threads` threads inside an operator. */
int32_t mpt_run(const mpt_module *module, const mpt_value *values, size_t count, int32_t threads, mpt_answer **out);
size_t mpt_answer_count(const mpt_answer *answer);
void mpt_answer_view(const mpt_answer *answer, size_t index, mpt_view *out);
/* Shares the tensor of an index with the caller. Returns null if memory is short. */
mpt_tensor *mpt_answer_take(const mpt_answer *answer, size_t index);
void mpt_answer_drop(mpt_answer *answer);
void mpt_tensor_drop(mpt_tensor *tensor);

int32_t mpt_builder_new(mpt_builder **out);
/* Adds a contiguous tensor. The caller writes its elements to `data` before saving. */
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
