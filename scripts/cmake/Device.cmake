# Device code: what the preset cuda compiles with nvcc, and the tests as C++ over fakes.
file(GLOB LOCKSTEP_DEVICE_SOURCES CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/lib/*/cuda/*.cpp ${PROJECT_SOURCE_DIR}/lib/*/cuda/*.cu
     ${PROJECT_SOURCE_DIR}/collectives/cuda/*.cpp)
# no_nccl.cpp stands in for nccl_*.cpp.
list(FILTER LOCKSTEP_DEVICE_SOURCES EXCLUDE REGEX /no_nccl\\.cpp$)
