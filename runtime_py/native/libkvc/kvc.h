// The C interface of libkvc: it opens bundles (`model.kvc`) and runs their methods, without Python.
//
// A bundle holds what all its sessions share, above all the weights. A session holds states, such
// as a key-value cache. RUN_FROM_C.md has an example.
//
// Every function that can fail returns a code, 0 for success, and describes a failure in `error`,
// which may be null. After a failure nothing has changed, unless the function says otherwise.
// Any thread may use a bundle. One thread at a time uses a session; a second one gets KVC_BUSY.
// Texts are UTF-8 and end with a zero. Pointers that a function gives are valid until the bundle
// is closed, or as the function says.
#ifndef KVC_H
#define KVC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32) && defined(KVC_BUILDS)
#define KVC_PUBLIC __declspec(dllexport)
#elif defined(_WIN32) && !defined(KVC_STATIC)
#define KVC_PUBLIC __declspec(dllimport)
#elif defined(__GNUC__)
#define KVC_PUBLIC __attribute__((visibility("default")))
#else
#define KVC_PUBLIC
#endif

typedef struct kvc_bundle kvc_bundle;
typedef struct kvc_session kvc_session;

// Why a function failed. Numbers never change; new ones may be added.
typedef enum kvc_code {
  KVC_OK = 0,
  KVC_BAD_ARGUMENT = 1,         // an argument is out of its bounds, or null
  KVC_UNKNOWN_NAME = 2,         // no method, symbol, state, file or metadata has that name
  KVC_FILE_PROBLEM = 3,         // the system cannot open or read a file
  KVC_CANNOT_WRITE = 4,         // the system cannot write a file; the old one is untouched
  KVC_NOT_A_BUNDLE = 5,         // a file of another kind
  KVC_UNSUPPORTED_VERSION = 6,  // made by a newer kvc
  KVC_DAMAGED = 7,              // truncated, or bytes do not have their digest, or break the format
  KVC_DATA_FILE_MISSING = 8,    // no data file of that name is beside the bundle
  KVC_DATA_FILE_MISMATCH = 9,   // the data file beside the bundle is of another bundle
  KVC_FILE_CHANGED = 10,        // a file was written to while the bundle was open
  KVC_NOT_BOUND = 11,           // the bundle has no bound lists, or none for these sizes
  KVC_OTHER_KERNELS = 12,       // its bound lists are for another version of the kernels
  KVC_OUT_OF_MEMORY = 13,
  KVC_INPUT_MISMATCH = 14,      // an input has another dtype, shape or range than the method takes
  KVC_STATE_MISMATCH = 15,      // the states are not as the method takes them
  KVC_CACHE_OVERFLOW = 16,      // no room for the tokens of the call
  KVC_CALL_TOO_LONG = 17,       // more tokens than a ring allows, and no way to split the call
  KVC_NOT_ENCODED = 18,         // the method reads what an encoder makes, which has not run
  KVC_INDEX_OUT_OF_RANGE = 19,  // an index, such as a token, is outside of its table
  KVC_KERNEL_FAILED = 20,       // values that an operator refuses, such as a singular matrix
  KVC_POISONED = 21,            // a failed call left states partly written; reset the session
  KVC_BUSY = 22,                // another thread uses the session
  KVC_NO_POSITION = 23,         // the program does not count tokens
  KVC_NOT_REWINDABLE = 24,      // a state cannot be restored at the earlier position
  KVC_BAD_SNAPSHOT = 25,        // the file of a session is damaged, or of another program
  KVC_INTERNAL = 26,            // a mistake in libkvc
  KVC_UNUSABLE_LOGITS = 27,     // logits hold NaN, or settings leave no token to choose
  KVC_UNSUPPORTED_TOKENIZER = 28  // a tokenizer.json of a kind that libkvc does not read
} kvc_code;

typedef struct kvc_error {
  kvc_code code;
  char text[1020];  // what failed and where, what was expected and found, what to try
} kvc_error;

// Element types.
typedef enum kvc_dtype {
  KVC_FLOAT32 = 0,
  KVC_FLOAT64 = 1,
  KVC_FLOAT16 = 2,
  KVC_BFLOAT16 = 3,
  KVC_INT8 = 4,
  KVC_INT16 = 5,
  KVC_INT32 = 6,
  KVC_INT64 = 7,
  KVC_UINT8 = 8,
  KVC_BOOL = 9
} kvc_dtype;

#define KVC_MOST_DIMS 8

// An array: elements in row-major order, without gaps.
typedef struct kvc_array {
  void* data;
  int32_t dtype;  // kvc_dtype
  int32_t rank;
  int64_t dims[KVC_MOST_DIMS];
} kvc_array;

// A dim as a method or a state declares it. A number has equal bounds. Any other is an
// expression of symbols; `text` is it, such as "seq" or "2*seq+1".
typedef struct kvc_dim {
  int64_t lower, upper;
  const char* text;  // null for a number
} kvc_dim;

// An input, an output or a state.
typedef struct kvc_type {
  const char* name;  // of an output ""
  int32_t dtype;
  int32_t rank;
  kvc_dim dims[KVC_MOST_DIMS];
} kvc_type;

typedef struct kvc_method {
  const char* name;
  const char* role;  // "encode", "prefill", "decode", "prefill_all" or ""
  int32_t inputs, outputs;
  int32_t row_lengths;  // the input with the length of each row, which may be left out; or -1
} kvc_method;

typedef struct kvc_symbol {
  const char* name;
  int64_t lower, upper;
  int32_t of_sessions;  // 1 if a session fixes its size
} kvc_symbol;

typedef struct kvc_size {
  const char* symbol;
  int64_t size;
} kvc_size;

// ---- The library: one set of kernels and threads for the process.

// Version of the kernels. Bound lists of another version are not run.
KVC_PUBLIC int32_t kvc_version(void);
// Names of the instruction sets that kernels can use here, least first, each with a space after it.
KVC_PUBLIC const char* kvc_processors(void);
// Makes kernels use one of these from now on: 0, or -1 where it is none of them.
KVC_PUBLIC int32_t kvc_use_processor(const char* name);

// ---- Bundles.

// Opens a bundle, and the data files beside it. Only the program is read; weights are mapped, and
// checked when a method first needs them.
KVC_PUBLIC kvc_code kvc_open(const char* path, kvc_bundle** bundle, kvc_error* error);
// Opens a bundle in memory that begins at a multiple of 64 bytes. The caller keeps it, unchanged,
// until the bundle and its sessions are closed.
KVC_PUBLIC kvc_code kvc_open_memory(const void* bytes, size_t nbytes, kvc_bundle** bundle,
                                    kvc_error* error);
// Closes a bundle; null does nothing. Its sessions stay usable until they are closed.
KVC_PUBLIC void kvc_close(kvc_bundle* bundle);
// Sets how many threads a call computes with, from 1 on. At first as many as there are cores.
KVC_PUBLIC kvc_code kvc_set_threads(kvc_bundle* bundle, int32_t threads, kvc_error* error);

KVC_PUBLIC int32_t kvc_method_count(const kvc_bundle* bundle);
KVC_PUBLIC kvc_code kvc_get_method(const kvc_bundle* bundle, int32_t method, kvc_method* found,
                                   kvc_error* error);
// The number of a method, -1 where none has the name.
KVC_PUBLIC int32_t kvc_find_method(const kvc_bundle* bundle, const char* name);
KVC_PUBLIC kvc_code kvc_get_input(const kvc_bundle* bundle, int32_t method, int32_t input,
                                  kvc_type* found, kvc_error* error);
KVC_PUBLIC kvc_code kvc_get_output(const kvc_bundle* bundle, int32_t method, int32_t output,
                                   kvc_type* found, kvc_error* error);
KVC_PUBLIC int32_t kvc_state_count(const kvc_bundle* bundle);
KVC_PUBLIC kvc_code kvc_get_state(const kvc_bundle* bundle, int32_t state, kvc_type* found,
                                  kvc_error* error);
KVC_PUBLIC int32_t kvc_symbol_count(const kvc_bundle* bundle);
KVC_PUBLIC kvc_code kvc_get_symbol(const kvc_bundle* bundle, int32_t symbol, kvc_symbol* found,
                                   kvc_error* error);
// Gives the JSON text of a key of the metadata. Of an empty key: a JSON list of all keys.
KVC_PUBLIC kvc_code kvc_get_metadata(const kvc_bundle* bundle, const char* key, const char** json,
                                     kvc_error* error);
// Gives the bytes of a bundled file, such as "tokenizer.json", after checking them.
KVC_PUBLIC kvc_code kvc_get_file(kvc_bundle* bundle, const char* name, const void** bytes,
                                 size_t* nbytes, kvc_error* error);

// ---- Sessions.

// Opens a session with states as they are at first. `sizes` fixes symbols of states; others have
// their default: "batch" its least, any other its greatest size. `capacity` is how many tokens a
// row can hold, 0 for the greatest; memory is taken only when it is written.
KVC_PUBLIC kvc_code kvc_session_open(kvc_bundle* bundle, const kvc_size* sizes, int32_t count,
                                     int64_t capacity, kvc_session** session, kvc_error* error);
// Frees a session; null does nothing. A session that another thread uses is not freed.
KVC_PUBLIC kvc_code kvc_session_close(kvc_session* session, kvc_error* error);
// Opens a session with the same content. Afterwards the two are independent.
KVC_PUBLIC kvc_code kvc_session_fork(kvc_session* session, kvc_session** fork, kvc_error* error);
// Resets every state to its initial value, except states that a reset keeps.
KVC_PUBLIC kvc_code kvc_session_reset(kvc_session* session, kvc_error* error);
// Drops the last tokens of each row: `counts` has one number for all rows, or one for each.
KVC_PUBLIC kvc_code kvc_session_rewind(kvc_session* session, const int64_t* counts, int32_t count,
                                       kvc_error* error);
// Writes how many tokens of each row a rewind can drop now; `rows` as in kvc_session_position.
KVC_PUBLIC kvc_code kvc_session_rewindable(kvc_session* session, int64_t* counts, int32_t* rows,
                                           kvc_error* error);
// Writes the position of each row at a cursor, 0 for how many tokens rows hold. `rows` is how many
// numbers there is room for, and afterwards how many there are; `positions` may be null.
KVC_PUBLIC kvc_code kvc_session_position(kvc_session* session, int32_t cursor, int64_t* positions,
                                         int32_t* rows, kvc_error* error);
// How many tokens a row can hold, -1 for no limit.
KVC_PUBLIC int64_t kvc_session_capacity(const kvc_session* session);
// Describes the present content of a state, up to its length if it grows. The elements of dims
// are `strides` apart, in elements. Valid until the session is used again.
KVC_PUBLIC kvc_code kvc_session_state(kvc_session* session, int32_t state, kvc_array* content,
                                      int64_t strides[KVC_MOST_DIMS], kvc_error* error);

// Runs a method. `inputs` are all its inputs, in order; row lengths are left out by null data.
// An output whose data is null is put into memory of the session, which is valid until the
// session is used again; into any other memory it is copied, and dtype and dims must be its own.
// A prefill that is too long for one call is taken in pieces. A failed call leaves the session as
// it was, or poisons it: if it has written a state whose old content cannot be restored.
KVC_PUBLIC kvc_code kvc_session_run(kvc_session* session, int32_t method, const kvc_array* inputs,
                                    int32_t input_count, kvc_array* outputs, int32_t output_count,
                                    kvc_error* error);
// Gives the dtypes and dims of the outputs that a call would have now, without running it.
KVC_PUBLIC kvc_code kvc_session_shapes(kvc_session* session, int32_t method,
                                       const kvc_array* inputs, int32_t input_count,
                                       kvc_array* outputs, int32_t output_count,
                                       kvc_error* error);
// Runs tokens of a session of one row by the methods of the roles "prefill" and "decode", in as
// many calls as they need, and gives the logits after the last one, float32 [vocabulary]. They
// are valid until the session is used again. If a later call fails, the tokens before it stay.
KVC_PUBLIC kvc_code kvc_session_step(kvc_session* session, const int64_t* tokens, int64_t count,
                                     const float** logits, int64_t* vocabulary, kvc_error* error);

// Writes the session to a file, which Python's `Program.restore` reads too. `attached` is a JSON
// object that the file carries, or null. `pending` are tokens of a session of one row that are to
// run next, such as the last one that was sampled.
KVC_PUBLIC kvc_code kvc_session_save(kvc_session* session, const char* path, const char* attached,
                                     const int64_t* pending, int64_t count, kvc_error* error);
// Opens a session from such a file, also from one of Python's `Session.save`.
KVC_PUBLIC kvc_code kvc_session_restore(kvc_bundle* bundle, const char* path,
                                        kvc_session** session, kvc_error* error);
// Gives what the file of a restored session carried: the JSON object, and the pending tokens of
// a row. Valid until the session is closed.
KVC_PUBLIC kvc_code kvc_session_attached(kvc_session* session, int32_t row, const char** attached,
                                         const int64_t** pending, int64_t* count,
                                         kvc_error* error);

#ifdef __cplusplus
}
#endif

#endif  // KVC_H
