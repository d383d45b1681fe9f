// Tensors of libtorch, from and to those of the files.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "program.hpp"

namespace modelc {

inline at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::Bool: return at::kBool;
    case DType::UInt8: return at::kByte;
    case DType::Int8: return at::kChar;
    case DType::Int16: return at::kShort;
    case DType::Int32: return at::kInt;
    case DType::Int64: return at::kLong;
    case DType::Float16: return at::kHalf;
    case DType::BFloat16: return at::kBFloat16;
    case DType::Float32: return at::kFloat;
    case DType::Float64: return at::kDouble;
    case DType::Complex64: return at::kComplexFloat;
    case DType::Complex128: return at::kComplexDouble;
    case DType::UInt16: return at::kUInt16;
    case DType::UInt32: return at::kUInt32;
    case DType::UInt64: return at::kUInt64;
  }
  throw std::runtime_error("unknown dtype");
}

inline DType dtype_of(at::ScalarType type) {
  for (int code = 0; code <= static_cast<int>(DType::UInt64); ++code)
    if (scalar_type(static_cast<DType>(code)) == type) return static_cast<DType>(code);
  throw std::runtime_error(std::string("an output is of ") + at::toString(type));
}

inline at::Tensor to_torch(const Tensor& tensor) {
  at::Tensor made = at::empty(tensor.dims, scalar_type(tensor.dtype));
  if (!tensor.data.empty()) std::memcpy(made.data_ptr(), tensor.data.data(), tensor.data.size());
  return made;
}

inline Tensor from_torch(std::string name, const at::Tensor& value) {
  at::Tensor plain = value.detach().cpu();
  if (plain.is_quantized()) plain = plain.dequantize();
  if (plain.layout() != at::kStrided) plain = plain.to_dense();
  if (plain.scalar_type() == at::kComplexHalf) plain = plain.to(at::kComplexFloat);
  if (at::isFloat8Type(plain.scalar_type())) plain = plain.to(at::kFloat);
  plain = plain.resolve_conj().resolve_neg().contiguous();
  Tensor made;
  made.name = std::move(name);
  made.dtype = dtype_of(plain.scalar_type());
  made.dims = plain.sizes().vec();
  made.data.resize(byte_count(made.dtype, made.dims));
  if (!made.data.empty()) std::memcpy(made.data.data(), plain.const_data_ptr(), made.data.size());
  return made;
}

inline void limit_threads(int threads) {
  if (threads <= 0) return;
  at::set_num_threads(threads);
  at::set_num_interop_threads(1);
}

}  // namespace modelc
