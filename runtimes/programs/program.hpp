// What the programs share: tensors in files, and the loop that answers one feed after another.
//
// modelc writes a feed to a file. It sends one line: the serial number of the feed, the path of
// that file and the path for the outputs, separated by tabs. The program answers with one line:
// `ok SERIAL`, or `error SERIAL TEXT`. Before that it sends `ready`, or `error 0 TEXT`, and has
// described the model in a file, as records of fields.
//
// A file of tensors holds their number, and of each: its name, dtype, dims and values. All numbers
// are little-endian, lengths and dims of 8 bytes, a dtype of one.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace modelc {

// The numbers are part of the file format: DTYPES in program_files.py has the same order.
enum class DType : uint8_t {
  Bool, UInt8, Int8, Int16, Int32, Int64, Float16, BFloat16, Float32, Float64, Complex64,
  Complex128, UInt16, UInt32, UInt64,
};

inline size_t size_of(DType dtype) {
  static const size_t sizes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16, 2, 4, 8};
  auto index = static_cast<size_t>(dtype);
  if (index >= sizeof(sizes) / sizeof(sizes[0])) throw std::runtime_error("unknown dtype");
  return sizes[index];
}

// A name may be a path into nested values: this character separates its parts.
constexpr char kSeparator = '\x1f';

struct Tensor {
  std::string name;
  DType dtype = DType::Float32;
  std::vector<int64_t> dims;
  std::vector<char> data;
};

inline size_t byte_count(DType dtype, const std::vector<int64_t>& dims) {
  size_t count = size_of(dtype);
  for (int64_t dim : dims) {
    if (dim < 0) throw std::runtime_error("a dim is negative");
    if (__builtin_mul_overflow(count, static_cast<size_t>(dim), &count))
      throw std::runtime_error("a tensor is too large");
  }
  return count;
}

using Record = std::vector<std::string>;

// An opened model. `describe` returns records such as {"input", DTYPE, NAME}.
class Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<Record> describe() = 0;
  virtual std::vector<Tensor> run(const std::vector<Tensor>& feed) = 0;
};

using OpenModel = std::unique_ptr<Model> (*)(const std::string& path, int threads);

class Reader {
 public:
  explicit Reader(const std::string& path) : stream_(path, std::ios::binary | std::ios::ate) {
    if (!stream_) throw std::runtime_error("cannot read " + path);
    left_ = static_cast<uint64_t>(stream_.tellg());
    stream_.seekg(0);
  }

  std::vector<Tensor> tensors() {
    std::vector<Tensor> found(checked(number()));
    for (Tensor& tensor : found) {
      tensor.name.resize(checked(number()));
      bytes(tensor.name.data(), tensor.name.size());
      bytes(reinterpret_cast<char*>(&tensor.dtype), 1);
      tensor.dims.resize(checked(number()));
      for (int64_t& dim : tensor.dims) dim = static_cast<int64_t>(number());
      tensor.data.resize(checked(byte_count(tensor.dtype, tensor.dims)));
      bytes(tensor.data.data(), tensor.data.size());
    }
    return found;
  }

 private:
  uint64_t number() {
    uint64_t value = 0;
    bytes(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }

  uint64_t checked(uint64_t count) const {  // nothing is longer than the rest of the file
    if (count > left_) throw std::runtime_error("the feed is cut off");
    return count;
  }

  void bytes(char* to, size_t count) {
    checked(count);
    if (!stream_.read(to, static_cast<std::streamsize>(count)))
      throw std::runtime_error("the feed cannot be read");
    left_ -= count;
  }

  std::ifstream stream_;
  uint64_t left_ = 0;
};

class Writer {
 public:
  explicit Writer(const std::string& path) : stream_(path, std::ios::binary), path_(path) {}

  void tensors(const std::vector<Tensor>& values) {
    number(values.size());
    for (const Tensor& tensor : values) {
      text(tensor.name);
      stream_.put(static_cast<char>(tensor.dtype));
      number(tensor.dims.size());
      for (int64_t dim : tensor.dims) number(static_cast<uint64_t>(dim));
      stream_.write(tensor.data.data(), static_cast<std::streamsize>(tensor.data.size()));
    }
    finish();
  }

  void records(const std::vector<Record>& values) {
    number(values.size());
    for (const Record& record : values) {
      number(record.size());
      for (const std::string& field : record) text(field);
    }
    finish();
  }

 private:
  void number(uint64_t value) {
    stream_.write(reinterpret_cast<const char*>(&value), sizeof value);
  }

  void text(const std::string& value) {
    number(value.size());
    stream_.write(value.data(), static_cast<std::streamsize>(value.size()));
  }

  void finish() {
    stream_.close();
    if (!stream_) throw std::runtime_error("cannot write " + path_);
  }

  std::ofstream stream_;
  std::string path_;
};

// The end of a line within a text becomes the separator.
inline std::string one_line(const char* text) {
  std::string line(text);
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ') c = c == '\n' ? kSeparator : ' ';
  return line.substr(0, 1 << 16);
}

// Keep standard output for answers: what libraries print goes to standard error.
inline FILE* take_standard_output() {
  FILE* answers = fdopen(dup(STDOUT_FILENO), "w");
  if (answers == nullptr || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) std::abort();
  return answers;
}

inline void answer(FILE* answers, const std::string& line) {
  std::fprintf(answers, "%s\n", line.c_str());
  std::fflush(answers);
}

inline void answer_feed(Model& model, const std::string& line) {
  size_t first = line.find('\t'), second = line.find('\t', first + 1);
  if (second == std::string::npos) throw std::runtime_error("a request has three fields");
  Reader reader(line.substr(first + 1, second - first - 1));
  Writer(line.substr(second + 1)).tensors(model.run(reader.tensors()));
}

// PROGRAM --version, or PROGRAM MODEL DESCRIPTION THREADS
inline int serve(int argc, char** argv, const std::string& version, OpenModel open) {
  if (argc == 2 && std::string(argv[1]) == "--version") {
    std::printf("%s\n", version.c_str());
    return 0;
  }
  if (argc != 4) return 2;
  FILE* answers = take_standard_output();
  std::unique_ptr<Model> model;
  try {
    model = open(argv[1], std::atoi(argv[3]));
    Writer(argv[2]).records(model->describe());
  } catch (const std::exception& error) {
    answer(answers, "error 0 " + one_line(error.what()));
    return 0;
  }
  answer(answers, "ready");
  for (std::string line; std::getline(std::cin, line);) {
    std::string serial = line.substr(0, line.find('\t'));
    try {
      answer_feed(*model, line);
      answer(answers, "ok " + serial);
    } catch (const std::exception& error) {
      answer(answers, "error " + serial + " " + one_line(error.what()));
    }
  }
  return 0;
}

}  // namespace modelc
