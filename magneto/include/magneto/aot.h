/* Programs of magneto.aot_compile in C and C++, without Python: link libmagneto_aot.so, beside this folder.
 *
 * A file holds machine code: open only files that you trust. Programs may be called from several threads at a time,
 * unless they write buffers of their own. */
#ifndef MAGNETO_AOT_H
#define MAGNETO_AOT_H

#include <stddef.h>
#include <stdint.h>

#define MAGNETO_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MagnetoProgram MagnetoProgram;

/* Numbers of PyTorch's c10::ScalarType. */
enum {
  MAGNETO_UINT8 = 0,
  MAGNETO_INT8 = 1,
  MAGNETO_INT16 = 2,
  MAGNETO_INT32 = 3,
  MAGNETO_INT64 = 4,
  MAGNETO_FLOAT16 = 5,
  MAGNETO_FLOAT32 = 6,
  MAGNETO_FLOAT64 = 7,
  MAGNETO_BOOL = 11,
  MAGNETO_BFLOAT16 = 15
};

/* A dense tensor in the CPU's memory. Strides count elements; of an argument null: without gaps. */
typedef struct {
  void* data;
  int32_t dtype, rank;
  const int64_t *sizes, *strides;
  void* owner; /* of a result: magneto_free gives it up. Of an argument: not read */
} MagnetoTensor;

/* Null: magneto_error says why. */
MAGNETO_API MagnetoProgram* magneto_open(const char* path);
MAGNETO_API void magneto_close(MagnetoProgram* program);

/* What went wrong in this thread's last call, until the next one. */
MAGNETO_API const char* magneto_error(void);

/* Tensors that a call takes and gives, in the order in which they stand in the Python call's arguments and result. */
MAGNETO_API size_t magneto_argument_count(const MagnetoProgram* program);
MAGNETO_API size_t magneto_result_count(const MagnetoProgram* program);
/* "*args[0]", "**kwargs['mask']". */
MAGNETO_API const char* magneto_argument_name(const MagnetoProgram* program, size_t index);

/* 0: `results` has magneto_result_count tensors, each to be freed. Else magneto_error says why, and there are none.
 * The arguments' memory must live as long as results that are views of it. */
MAGNETO_API int magneto_run(MagnetoProgram* program, const MagnetoTensor* arguments, MagnetoTensor* results);
MAGNETO_API void magneto_free(MagnetoTensor* tensor);

/* The same with arrays of at::Tensor: `results` has room for magneto_result_count. See below. */
MAGNETO_API int magneto_run_torch(MagnetoProgram* program, const void* arguments, size_t count, void* results);

#ifdef __cplusplus
}

#ifdef TORCH_API /* PyTorch's headers were included before this one */
#include <stdexcept>
#include <string>
#include <vector>

namespace magneto {

/* A program on at::Tensor, for C++ that uses libtorch. */
class AotProgram {
 public:
  explicit AotProgram(const std::string& path) : program_(magneto_open(path.c_str())) {
    if (!program_) throw std::runtime_error(magneto_error());
  }
  ~AotProgram() { magneto_close(program_); }
  AotProgram(const AotProgram&) = delete;
  AotProgram& operator=(const AotProgram&) = delete;

  /* Throws std::runtime_error with what is wrong with the arguments, or what an operator raised. */
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& arguments) {
    std::vector<at::Tensor> results(magneto_result_count(program_));
    if (magneto_run_torch(program_, arguments.data(), arguments.size(), results.data()) != 0) {
      throw std::runtime_error(magneto_error());
    }
    return results;
  }

 private:
  MagnetoProgram* program_;
};

}  // namespace magneto
#endif
#endif

#endif
