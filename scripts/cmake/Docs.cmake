# The target `docs`: Doxygen over the public headers, as HTML in build/PRESET/docs/html. A warning is
# an error.
find_package(Doxygen QUIET)
if(NOT DOXYGEN_FOUND)
  add_custom_target(docs COMMAND ${CMAKE_COMMAND} -E echo "docs: no doxygen; apt-get install doxygen"
                         COMMAND ${CMAKE_COMMAND} -E false)
  return()
endif()

set(DOXYGEN_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/docs)
set(DOXYGEN_STRIP_FROM_PATH ${LOCKSTEP_PUBLIC_HEADERS})
set(DOXYGEN_STRIP_FROM_INC_PATH ${LOCKSTEP_PUBLIC_HEADERS})
set(DOXYGEN_USE_MDFILE_AS_MAINPAGE ${PROJECT_SOURCE_DIR}/lib/README.md)
set(DOXYGEN_INPUT_FILTER "python3 \"${CMAKE_CURRENT_LIST_DIR}/contract_filter.py\"")
set(DOXYGEN_ALIASES [["contract{1}=@par \1^^" "opening=@file^^"]])
set(DOXYGEN_VERBATIM_VARS DOXYGEN_ALIASES)
set(DOXYGEN_EXTRACT_ALL YES)
set(DOXYGEN_HIDE_UNDOC_RELATIONS NO)
set(DOXYGEN_SORT_MEMBER_DOCS NO)  # the order of the header is the order to read it in
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_BUILTIN_STL_SUPPORT YES)
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_GENERATE_TREEVIEW YES)
set(DOXYGEN_QUIET YES)
set(DOXYGEN_WARN_IF_INCOMPLETE_DOC NO)  # what a parameter is stands in the sentences
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
doxygen_add_docs(docs ${LOCKSTEP_PUBLIC_HEADERS} ${PROJECT_SOURCE_DIR}/lib/README.md
                 COMMENT "Doxygen over the public headers")
add_custom_target(public_headers COMMAND ${CMAKE_COMMAND} -P ${PROJECT_BINARY_DIR}/PublicHeaders.cmake)
add_dependencies(docs public_headers)
