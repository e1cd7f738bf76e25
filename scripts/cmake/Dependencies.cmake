# The packages that the libraries need. Included by the build and by the installed package, where
# find_package(lockstep) reports what is missing.

macro(lockstep_needs)
  if(CMAKE_FIND_PACKAGE_NAME STREQUAL lockstep)
    include(CMakeFindDependencyMacro)
    find_dependency(${ARGV})
  else()
    find_package(${ARGV} REQUIRED)
  endif()
endmacro()

lockstep_needs(Threads)
if(LOCKSTEP_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # Open MPI 4's C++ bindings are dead weight and warn
  lockstep_needs(MPI COMPONENTS CXX)
endif()
lockstep_needs(OpenMP COMPONENTS CXX)
lockstep_needs(Eigen3)
lockstep_needs(ZLIB)
lockstep_needs(PNG)
lockstep_needs(JPEG)
lockstep_needs(PkgConfig)
pkg_check_modules(hwy IMPORTED_TARGET libhwy)
pkg_check_modules(isal IMPORTED_TARGET libisal)
pkg_check_modules(zip IMPORTED_TARGET libzip)
pkg_check_modules(xxhash IMPORTED_TARGET libxxhash)

# cairo draws figures (LOCKSTEP_CAIRO: AUTO, ON, OFF).
set(LOCKSTEP_HAS_CAIRO OFF)
if(LOCKSTEP_CAIRO)
  pkg_check_modules(cairo IMPORTED_TARGET cairo-svg cairo-png)
  if(cairo_FOUND)
    set(LOCKSTEP_HAS_CAIRO ON)
  endif()
endif()

# oneDNN computes the library products, or Eigen where there is none (LOCKSTEP_ONEDNN: AUTO, ON,
# OFF). Debian's package file of oneDNN requires OpenCL's headers, which are not needed here.
set(LOCKSTEP_HAS_ONEDNN OFF)
if(LOCKSTEP_ONEDNN)
  find_path(DNNL_INCLUDE_DIR dnnl.h)
  find_library(DNNL_LIBRARY dnnl)
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
    set(dnnl_FOUND TRUE)
    set(LOCKSTEP_HAS_ONEDNN ON)
    if(NOT TARGET lockstep_dnnl)
      add_library(lockstep_dnnl UNKNOWN IMPORTED)
      set_target_properties(lockstep_dnnl PROPERTIES
                            IMPORTED_LOCATION ${DNNL_LIBRARY}
                            INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
    endif()
  endif()
endif()

if(LOCKSTEP_CUDA)
  lockstep_needs(CUDAToolkit)
endif()
set(plain_libraries hwy isal xxhash zip)
if(LOCKSTEP_CAIRO AND NOT LOCKSTEP_CAIRO STREQUAL "AUTO")
  list(APPEND plain_libraries cairo)
endif()
if(LOCKSTEP_ONEDNN AND NOT LOCKSTEP_ONEDNN STREQUAL "AUTO")
  list(APPEND plain_libraries dnnl)
endif()
if(LOCKSTEP_CUDA AND LOCKSTEP_NCCL)  # beside the toolkit, or in the system
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  list(APPEND plain_libraries nccl)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(nccl_FOUND TRUE)
    if(NOT TARGET lockstep_nccl)
      add_library(lockstep_nccl UNKNOWN IMPORTED)
      set_target_properties(lockstep_nccl PROPERTIES
                            IMPORTED_LOCATION ${NCCL_LIBRARY}
                            INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
    endif()
  endif()
endif()

foreach(library IN LISTS plain_libraries)
  if(${library}_FOUND)
    continue()
  elseif(CMAKE_FIND_PACKAGE_NAME STREQUAL lockstep)
    set(lockstep_FOUND FALSE)
    set(lockstep_NOT_FOUND_MESSAGE "lockstep needs the development files of lib${library}.")
    return()
  endif()
  if(library STREQUAL nccl)
    message(FATAL_ERROR "no nccl.h and libnccl: install them beside the CUDA toolkit, or configure "
                        "with -DLOCKSTEP_NCCL=OFF, where ranks on devices talk through the host")
  endif()
  message(FATAL_ERROR "no development files of lib${library}: scripts/install.sh brings them")
endforeach()
