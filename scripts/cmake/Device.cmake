# Device code: what the preset cuda compiles with nvcc, and the tests as C++ over fakes.
file(GLOB LOCKSTEP_DEVICE_SOURCES CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/lib/*/cuda/*.cpp ${PROJECT_SOURCE_DIR}/lib/*/cuda/*.cu
     ${PROJECT_SOURCE_DIR}/collectives/cuda/*.cpp)
