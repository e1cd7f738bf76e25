# Device code: what the preset cuda compiles with nvcc, and the tests as C++ over fakes.
file(GLOB LOCKSTEP_DEVICE_SOURCES CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/lib/*/cuda/*.cpp ${PROJECT_SOURCE_DIR}/lib/*/cuda/*.cu
     ${PROJECT_SOURCE_DIR}/collectives/cuda/*.cpp)
# no_nccl.cpp stands in for nccl.cpp.
list(FILTER LOCKSTEP_DEVICE_SOURCES EXCLUDE REGEX /no_nccl\\.cpp$)

# As on the processor: no contraction, so that a * b + c is rounded twice unless it says fma.
# constexpr functions are the device's too. The dialect by name: CMake 3.25 knows no CUDA 20.
# 554: nvcc's front does not see that Matrix's conversion is constrained.
function(lockstep_device_flags target)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--fmad=false;--expt-relaxed-constexpr;-diag-suppress=554;-Xcompiler=-Wall,-Wextra>")
endfunction()
