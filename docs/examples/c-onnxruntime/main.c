/* run MODEL.onnx SHAPE FILE [SHAPE FILE ...]
 *
 * Runs an ONNX file in ONNX Runtime and prints its outputs. Each input is float32, in the order of
 * the model: its shape, as 1x3x8x8, and a file of its values. */
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 32 }; /* inputs, outputs and dims */

static const OrtApi *api;

static void check(OrtStatus *status) {
  if (status == NULL) return;
  fprintf(stderr, "%s\n", api->GetErrorMessage(status));
  exit(1);
}

static OrtValue *read_input(const OrtMemoryInfo *memory, const char *shape, const char *path) {
  int64_t dims[MOST];
  size_t rank = 0, count = 1;
  for (char *rest = (char *)shape; *rest != '\0' && rank < MOST; rest += *rest == 'x')
    count *= (size_t)(dims[rank++] = strtoll(rest, &rest, 10));
  float *values = malloc(count * sizeof *values + 1); /* the tensor uses it until the end */
  FILE *file = fopen(path, "rb");
  if (file == NULL || values == NULL || fread(values, sizeof *values, count, file) != count) {
    fprintf(stderr, "%s is shorter than %s\n", path, shape);
    exit(1);
  }
  fclose(file);
  OrtValue *value = NULL;
  check(api->CreateTensorWithDataAsOrtValue(memory, values, count * sizeof *values, dims, rank,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
  return value;
}

static void print_output(OrtValue *value) {
  OrtTensorTypeAndShapeInfo *info = NULL;
  int64_t dims[MOST];
  size_t rank = 0, count = 0;
  float *values = NULL;
  check(api->GetTensorTypeAndShape(value, &info));
  check(api->GetDimensionsCount(info, &rank));
  check(api->GetDimensions(info, dims, rank));
  check(api->GetTensorShapeElementCount(info, &count));
  check(api->GetTensorMutableData(value, (void **)&values));
  for (size_t axis = 0; axis < rank; ++axis) printf("%lld ", (long long)dims[axis]);
  printf(":");
  for (size_t index = 0; index < count; ++index) printf(" %.9g", values[index]);
  printf("\n");
  api->ReleaseTensorTypeAndShapeInfo(info);
}

int main(int argc, char **argv) {
  OrtEnv *env = NULL;
  OrtSessionOptions *options = NULL;
  OrtSession *session = NULL;
  OrtMemoryInfo *memory = NULL;
  OrtAllocator *allocator = NULL;
  char *input_names[MOST], *output_names[MOST];
  OrtValue *inputs[MOST], *outputs[MOST] = {NULL};
  size_t input_count = 0, output_count = 0;

  api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (api == NULL) { /* the header is newer than the library; it has said so */
    return 1;
  }
  check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "run", &env));
  check(api->CreateSessionOptions(&options));
  check(api->CreateSession(env, argv[1], options, &session));
  check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  check(api->GetAllocatorWithDefaultOptions(&allocator));
  check(api->SessionGetInputCount(session, &input_count));
  check(api->SessionGetOutputCount(session, &output_count));
  if (input_count > MOST || output_count > MOST || (size_t)argc != 2 + 2 * input_count) {
    fprintf(stderr, "the model has %zu inputs and %zu outputs\n", input_count, output_count);
    return 1;
  }
  for (size_t index = 0; index < input_count; ++index) {
    check(api->SessionGetInputName(session, index, allocator, &input_names[index]));
    inputs[index] = read_input(memory, argv[2 + 2 * index], argv[3 + 2 * index]);
  }
  for (size_t index = 0; index < output_count; ++index)
    check(api->SessionGetOutputName(session, index, allocator, &output_names[index]));
  check(api->Run(session, NULL, (const char *const *)input_names, (const OrtValue *const *)inputs,
                 input_count, (const char *const *)output_names, output_count, outputs));
  for (size_t index = 0; index < output_count; ++index) print_output(outputs[index]);
  api->ReleaseSession(session);
  api->ReleaseEnv(env);
  return 0;
}
