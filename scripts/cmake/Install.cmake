# An installed copy: the command, the static libraries, headers as <lockstep/...>, package files.
# `docs` needs the same headers.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Headers that only our own sources include. All others of lib/, collectives/ and data/ are public.
set(LOCKSTEP_PRIVATE_HEADERS
    lib/numerics/strict_tile-inl.hpp lib/numerics/strict_weights-inl.hpp lib/train/json_fields.hpp)

set(LOCKSTEP_PUBLIC_HEADERS ${PROJECT_BINARY_DIR}/public)  # as they are installed
configure_file(${CMAKE_CURRENT_LIST_DIR}/PublicHeaders.cmake.in
               ${PROJECT_BINARY_DIR}/PublicHeaders.cmake @ONLY)
install(SCRIPT ${PROJECT_BINARY_DIR}/PublicHeaders.cmake)
install(DIRECTORY ${LOCKSTEP_PUBLIC_HEADERS}/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

install(TARGETS lockstep RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The command has the name already.
add_library(lockstep_whole INTERFACE)
get_property(parts GLOBAL PROPERTY LOCKSTEP_PARTS)
list(TRANSFORM parts PREPEND lockstep_ OUTPUT_VARIABLE libraries)
target_link_libraries(lockstep_whole INTERFACE ${libraries})
set_target_properties(lockstep_whole PROPERTIES EXPORT_NAME lockstep)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(TARGETS lockstep_whole ${libraries} EXPORT lockstepTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package})
list(JOIN parts ", lockstep::" LOCKSTEP_PARTS_TEXT)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/package/lockstepConfig.cmake
                              INSTALL_DESTINATION ${package}
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Until 1.0 a minor version may change what it likes.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/lockstepConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
configure_file(${CMAKE_CURRENT_LIST_DIR}/Dependencies.cmake
               ${PROJECT_BINARY_DIR}/package/lockstepDependencies.cmake COPYONLY)
install(DIRECTORY ${PROJECT_BINARY_DIR}/package/ DESTINATION ${package})
