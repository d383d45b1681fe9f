/* The functions of ONNX Runtime's C API that modelc's programs call.
 *
 * The wheels of onnxruntime hold the library without its headers. The library's table of functions
 * keeps its order in all versions, so that the functions in use are declared here at their places,
 * and numbered gaps stand for the others. The header of this name in a release of ONNX Runtime
 * declares all of them: programs compile against it unchanged if its folder comes first.
 */
#ifndef MODELC_ONNXRUNTIME_C_API_H
#define MODELC_ONNXRUNTIME_C_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORT_API_VERSION 1 /* nothing that is newer than the first version is in use */
#define MODELC_GAP(first, last) void *gap_##first[(last) - (first) + 1];

typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtValue OrtValue;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef OrtStatus *OrtStatusPtr;

typedef enum OrtLoggingLevel {
  ORT_LOGGING_LEVEL_WARNING = 2,
  ORT_LOGGING_LEVEL_ERROR = 3
} OrtLoggingLevel;
typedef enum OrtAllocatorType { OrtDeviceAllocator = 0, OrtArenaAllocator = 1 } OrtAllocatorType;
typedef enum OrtMemType { OrtMemTypeDefault = 0 } OrtMemType;
typedef enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED = 0,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16 = 4,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16 = 5,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL = 9,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32 = 12,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64 = 13,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 = 16
} ONNXTensorElementDataType;

typedef struct OrtApi {
  MODELC_GAP(0, 1)
  const char *(*GetErrorMessage)(const OrtStatus *status);
  OrtStatusPtr (*CreateEnv)(OrtLoggingLevel level, const char *id, OrtEnv **out);
  MODELC_GAP(4, 6)
  OrtStatusPtr (*CreateSession)(const OrtEnv *env, const char *path,
                                const OrtSessionOptions *options, OrtSession **out);
  MODELC_GAP(8, 8)
  OrtStatusPtr (*Run)(OrtSession *session, const OrtRunOptions *options,
                      const char *const *input_names, const OrtValue *const *inputs,
                      size_t input_count, const char *const *output_names, size_t output_count,
                      OrtValue **outputs);
  OrtStatusPtr (*CreateSessionOptions)(OrtSessionOptions **out);
  MODELC_GAP(11, 23)
  OrtStatusPtr (*SetIntraOpNumThreads)(OrtSessionOptions *options, int threads);
  OrtStatusPtr (*SetInterOpNumThreads)(OrtSessionOptions *options, int threads);
  MODELC_GAP(26, 29)
  OrtStatusPtr (*SessionGetInputCount)(const OrtSession *session, size_t *out);
  OrtStatusPtr (*SessionGetOutputCount)(const OrtSession *session, size_t *out);
  MODELC_GAP(32, 32)
  OrtStatusPtr (*SessionGetInputTypeInfo)(const OrtSession *session, size_t index,
                                          OrtTypeInfo **out);
  OrtStatusPtr (*SessionGetOutputTypeInfo)(const OrtSession *session, size_t index,
                                           OrtTypeInfo **out);
  MODELC_GAP(35, 35)
  OrtStatusPtr (*SessionGetInputName)(const OrtSession *session, size_t index,
                                      OrtAllocator *allocator, char **out);
  OrtStatusPtr (*SessionGetOutputName)(const OrtSession *session, size_t index,
                                       OrtAllocator *allocator, char **out);
  MODELC_GAP(38, 48)
  OrtStatusPtr (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *memory, void *data,
                                                 size_t bytes, const int64_t *dims, size_t rank,
                                                 ONNXTensorElementDataType type, OrtValue **out);
  OrtStatusPtr (*IsTensor)(const OrtValue *value, int *out);
  OrtStatusPtr (*GetTensorMutableData)(OrtValue *value, void **out);
  MODELC_GAP(52, 54)
  OrtStatusPtr (*CastTypeInfoToTensorInfo)(const OrtTypeInfo *info,
                                           const OrtTensorTypeAndShapeInfo **out);
  MODELC_GAP(56, 59)
  OrtStatusPtr (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *info,
                                       ONNXTensorElementDataType *out);
  OrtStatusPtr (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *info, size_t *out);
  OrtStatusPtr (*GetDimensions)(const OrtTensorTypeAndShapeInfo *info, int64_t *out, size_t rank);
  MODELC_GAP(63, 63)
  OrtStatusPtr (*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo *info, size_t *out);
  OrtStatusPtr (*GetTensorTypeAndShape)(const OrtValue *value, OrtTensorTypeAndShapeInfo **out);
  MODELC_GAP(66, 68)
  OrtStatusPtr (*CreateCpuMemoryInfo)(OrtAllocatorType type, OrtMemType memory,
                                      OrtMemoryInfo **out);
  MODELC_GAP(70, 75)
  OrtStatusPtr (*AllocatorFree)(OrtAllocator *allocator, void *place);
  MODELC_GAP(77, 77)
  OrtStatusPtr (*GetAllocatorWithDefaultOptions)(OrtAllocator **out);
  MODELC_GAP(79, 91)
  void (*ReleaseEnv)(OrtEnv *value);
  void (*ReleaseStatus)(OrtStatus *value);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo *value);
  void (*ReleaseSession)(OrtSession *value);
  void (*ReleaseValue)(OrtValue *value);
  MODELC_GAP(97, 97)
  void (*ReleaseTypeInfo)(OrtTypeInfo *value);
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *value);
  void (*ReleaseSessionOptions)(OrtSessionOptions *value);
  MODELC_GAP(101, 101)
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

const OrtApiBase *OrtGetApiBase(void);

#ifdef __cplusplus
}
#endif

#endif
