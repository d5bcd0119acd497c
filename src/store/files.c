/*
 * Chunk files: FOLDER/chunks/ab/0123456789abcdef.chunk, one a chunk, never changed after it has its name.
 *
 * A file number is random and used once, so a row of the index can never come to name other bytes, whatever was cut
 * short.  The row also has a digest of the file's first bytes, in which the chunk keeps the hashes over all of itself:
 * a whole and healthy chunk in the wrong place is not taken for the right one.
 */
#include "../common/file.h"
#include "../kv/hash.h"
#include "store_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_FOLDERS    256
#define DIGEST_BYTES 256 /* a chunk's header */
#define NAME_BYTES   40
#define ENDING       ".chunk"
#define ENDING_TMP   ".tmp"
#define ENDING_PARTS ".parts" /* a folder: what the workers of another engine keep of a chunk */
#define ENDING_GONE  ".gone"  /* such a folder that is being removed */

/* ------------------------------------------------------------ names */

static unsigned folder_of(int64_t file)
{
    return (unsigned)((uint64_t)file >> 48) & 0xFF;
}

static void name_of(int64_t file, const char *ending, char out[NAME_BYTES])
{
    (void)snprintf(out, NAME_BYTES, "%02x/%016llx%s", folder_of(file), (unsigned long long)file, ending);
}

typedef enum kind { KIND_CHUNK, KIND_TMP, KIND_PARTS, KIND_GONE } kind;

/* False for a name that this library does not give. */
static bool read_name(const char *name, unsigned folder, int64_t *file, kind *out)
{
    static const char *const ENDINGS[] = {
        [KIND_CHUNK] = ENDING, [KIND_TMP] = ENDING_TMP, [KIND_PARTS] = ENDING_PARTS, [KIND_GONE] = ENDING_GONE};
    static const char DIGITS[] = "0123456789abcdef";
    uint64_t number = 0;
    for (int i = 0; i < 16; i++) {
        const char *digit = name[i] != '\0' ? strchr(DIGITS, name[i]) : NULL;
        if (digit == NULL) return false;
        number = number << 4 | (uint64_t)(digit - DIGITS);
    }
    *file = (int64_t)number;
    for (kind k = KIND_CHUNK; k <= KIND_GONE; k++) {
        *out = k;
        if (strcmp(name + 16, ENDINGS[k]) == 0) return folder_of(*file) == folder;
    }
    return false;
}

is_status is_files_new(int64_t *file, is_error *err)
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return is_fail(err, IS_EIO, "the system gives no random numbers: %s", strerror(errno));
    *file = (int64_t)(number & INT64_MAX);
    return IS_OK;
}

void is_files_digest(const void *bytes, size_t size, uint8_t out[16])
{
    is_hash128((is_span[]){{bytes, size < DIGEST_BYTES ? size : DIGEST_BYTES}}, 1, out);
}

/* ------------------------------------------------------------ folders */

is_status is_files_open(is_store *store, is_error *err)
{
    int folder = open(store->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool well = folder >= 0 && (mkdirat(folder, "chunks", 0700) == 0 || errno == EEXIST);
    if (well) store->chunks_fd = openat(folder, "chunks", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    well = well && store->chunks_fd >= 0;
    bool made = false;
    for (unsigned i = 0; i < N_FOLDERS && well; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "%02x", i);
        bool is_new = mkdirat(store->chunks_fd, name, 0700) == 0;
        well = is_new || errno == EEXIST;
        made = made || is_new;
    }
    well = well && (!made || (fsync(store->chunks_fd) == 0 && fsync(folder) == 0));
    int error = errno;
    if (folder >= 0) (void)close(folder);
    if (well) return IS_OK;
    return is_fail(err, IS_EIO, "cannot make the folders in %s/chunks: %s; check the folder and its permissions",
                   store->folder, strerror(error));
}

static int open_folder(const is_store *store, unsigned folder)
{
    char name[8];
    (void)snprintf(name, sizeof name, "%02x", folder);
    return openat(store->chunks_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* 0, or an errno. */
static int sync_folder(const is_store *store, unsigned folder)
{
    int fd = open_folder(store, folder);
    if (fd < 0) return errno;
    int error = fsync(fd) == 0 ? 0 : errno;
    (void)close(fd);
    return error;
}

/* ------------------------------------------------------------ writing */

is_status is_files_write(is_store *store, int64_t file, const void *bytes, size_t size, is_error *err)
{
    char name[NAME_BYTES];
    char temporary[NAME_BYTES];
    name_of(file, ENDING, name);
    name_of(file, ENDING_TMP, temporary);
    int error = is_file_write(store->chunks_fd, temporary, O_EXCL, bytes, size);
    if (error == 0 && renameat(store->chunks_fd, temporary, store->chunks_fd, name) != 0) error = errno;
    if (error == 0) error = sync_folder(store, folder_of(file));
    if (error == 0) return IS_OK;
    (void)unlinkat(store->chunks_fd, temporary, 0);
    (void)unlinkat(store->chunks_fd, name, 0);
    return is_fail(err, IS_EIO, "cannot write chunk file %s/chunks/%s: %s; check the disk's space and health",
                   store->folder, name, strerror(error));
}

/* ------------------------------------------------------------ reading */

static is_status read_whole(int fd, const char *name, uint8_t *bytes, size_t size, is_error *err)
{
    int error = is_file_read(fd, bytes, size);
    if (error > 0) return is_fail(err, IS_ECORRUPT, "chunk file %s cannot be read: %s", name, strerror(error));
    if (error < 0) return is_fail(err, IS_ECORRUPT, "chunk file %s is cut short", name);
    return IS_OK;
}

/* ------------------------------------------------------------ parts */

is_status is_files_make_parts(is_store *store, int64_t file, is_error *err)
{
    char name[NAME_BYTES];
    name_of(file, ENDING_PARTS, name);
    if (mkdirat(store->chunks_fd, name, 0700) == 0) return IS_OK;
    return is_fail(err, IS_EIO, "cannot make the folder %s/chunks/%s: %s; check the disk's space and permissions",
                   store->folder, name, strerror(errno));
}

/* Empties and removes the folder of this name in chunks_fd; false: there is none. */
static bool remove_folder(const is_store *store, const char *name)
{
    int fd = openat(store->chunks_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return false;
    DIR *entries = fdopendir(fd);
    const struct dirent *entry = NULL;
    while (entries != NULL && (entry = readdir(entries)) != NULL) (void)unlinkat(fd, entry->d_name, 0);
    if (entries != NULL) {
        (void)closedir(entries);
    } else {
        (void)close(fd);
    }
    (void)unlinkat(store->chunks_fd, name, AT_REMOVEDIR);
    return true;
}

/* Under another name first, so that from then on no worker finds it, to read or to write. */
static bool remove_parts(const is_store *store, int64_t file)
{
    char name[NAME_BYTES], gone[NAME_BYTES];
    name_of(file, ENDING_PARTS, name);
    name_of(file, ENDING_GONE, gone);
    if (renameat(store->chunks_fd, name, store->chunks_fd, gone) != 0) return false;
    return remove_folder(store, gone);
}

static is_status check_part(const is_store *store, const char *name, const is_chunk *stub, is_error *err)
{
    struct stat about;
    is_chunk part;
    is_error why = {0};
    int fd = openat(store->chunks_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return is_fail(err, IS_EIO, "chunk part %s cannot be opened: %s", name, strerror(errno));
    size_t size = fstat(fd, &about) == 0 && about.st_size > 0 ? (size_t)about.st_size : 0;
    void *bytes = is_chunk_memory(size);
    is_status status = bytes == NULL ? is_fail(err, IS_ENOMEM, "out of memory for chunk part %s", name) : IS_OK;
    if (status == IS_OK) status = read_whole(fd, name, bytes, size, err);
    if (status == IS_OK && is_chunk_open(&part, bytes, size, IS_CHUNK_CHECK_PAYLOAD, &why) != IS_OK)
        status = is_fail(err, IS_ECORRUPT, "chunk part %s: %.900s", name, why.text);
    if (status == IS_OK && (part.info.n_tokens != stub->info.n_tokens || part.info.p_ref != stub->info.p_ref ||
                            memcmp(part.tokens, stub->tokens, part.info.n_tokens * sizeof *part.tokens) != 0))
        status = is_fail(err, IS_ECORRUPT, "chunk part %s is of other tokens than it was made for", name);
    (void)close(fd);
    free(bytes);
    return status;
}

is_status is_files_check_parts(is_store *store, const is_chunk *stub, bool whole, is_error *err)
{
    is_status status = IS_OK;
    for (uint32_t i = 0; i < stub->info.parts && status == IS_OK; i++) {
        char folder[NAME_BYTES], name[2 * NAME_BYTES];
        name_of(stub->info.key, ENDING_PARTS, folder);
        (void)snprintf(name, sizeof name, "%s/%uof%u", folder, i, stub->info.parts);
        if (faccessat(store->chunks_fd, name, R_OK, 0) != 0)
            status = is_fail(err, errno == ENOENT ? IS_ENOTFOUND : IS_EIO, "chunk part %s cannot be read: %s", name,
                             strerror(errno));
        else if (whole)
            status = check_part(store, name, stub, err);
    }
    return status;
}

/* ------------------------------------------------------------ loading */

static is_status load(is_store *store, int fd, const char *name, const is_chunk_row *row, uint8_t *bytes,
                      is_chunk *chunk, is_error *err)
{
    struct stat about;
    if (fstat(fd, &about) != 0 || about.st_size != (off_t)row->bytes)
        return is_fail(err, IS_ECORRUPT, "chunk file %s does not have the %lld bytes that were written", name,
                       (long long)row->bytes);
    size_t size = (size_t)row->bytes;
    is_status status = read_whole(fd, name, bytes, size, err);
    if (status != IS_OK) return status;
    uint8_t digest[16];
    is_files_digest(bytes, size, digest);
    if (memcmp(digest, row->digest, sizeof digest) != 0)
        return is_fail(err, IS_ECORRUPT, "chunk file %s is not the one that was written", name);
    is_error why = {0};
    if (is_chunk_open(chunk, bytes, size, IS_CHUNK_CHECK_PAYLOAD, &why) != IS_OK)
        return is_fail(err, IS_ECORRUPT, "chunk file %s: %.900s", name, why.text);
    if (chunk->info.parts == 0) return IS_OK;
    if (chunk->info.key != row->file) return is_fail(err, IS_ECORRUPT, "chunk file %s has another chunk's key", name);
    return is_files_check_parts(store, chunk, false, err);
}

is_status is_files_load(is_store *store, const is_chunk_row *row, void **bytes, is_chunk *chunk, is_error *err)
{
    *bytes = NULL;
    char name[NAME_BYTES];
    name_of(row->file, ENDING, name);
    int fd = openat(store->chunks_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return is_fail(err, IS_ENOTFOUND, "chunk file %s is gone", name);
    if (fd < 0) return is_fail(err, IS_EIO, "chunk file %s cannot be opened: %s", name, strerror(errno));
    is_status status = IS_OK;
    void *memory = is_chunk_memory((size_t)row->bytes);
    if (memory == NULL) status = is_fail(err, IS_ENOMEM, "out of memory for chunk file %s", name);
    if (status == IS_OK) status = load(store, fd, name, row, memory, chunk, err);
    (void)close(fd);
    if (status == IS_OK) {
        *bytes = memory;
    } else {
        free(memory);
    }
    return status;
}

/* ------------------------------------------------------------ unlinking */

void is_files_unlink(is_store *store, const is_chunk_row *rows, size_t n)
{
    bool touched[N_FOLDERS] = {false};
    for (size_t i = 0; i < n; i++) {
        char name[NAME_BYTES];
        name_of(rows[i].file, ENDING, name);
        /* What cannot be unlinked now is an orphan, which the next open takes away. */
        if (unlinkat(store->chunks_fd, name, 0) == 0) touched[folder_of(rows[i].file)] = true;
        if (remove_parts(store, rows[i].file)) touched[folder_of(rows[i].file)] = true;
    }
    for (unsigned i = 0; i < N_FOLDERS; i++)
        if (touched[i]) (void)sync_folder(store, i);
}

/* ------------------------------------------------------------ folder against index */

static size_t find_file(const int64_t *files, size_t n, int64_t file)
{
    size_t low = 0;
    size_t high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (files[middle] < file) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < n && files[low] == file ? low : SIZE_MAX;
}

typedef struct sweep {
    is_store *store;
    const int64_t *files;
    size_t n;
    bool *seen;
    bool remove;
    uint64_t orphans;
    void (*on_problem)(void *user, const char *line);
    void *user;
} sweep;

static bool is_awaited(is_store *store, int64_t key)
{
    bool found = false;
    is_db_lock(store);
    for (size_t i = 0; i < store->n_awaited && !found; i++) found = store->awaited[i] == key;
    is_db_unlock(store);
    return found;
}

static void sweep_entry(sweep *s, int folder_fd, unsigned folder, const char *name)
{
    int64_t file = 0;
    kind what;
    if (!read_name(name, folder, &file, &what)) return;
    size_t at = what == KIND_CHUNK || what == KIND_PARTS ? find_file(s->files, s->n, file) : SIZE_MAX;
    if (at != SIZE_MAX && what == KIND_CHUNK) s->seen[at] = true;
    if (at != SIZE_MAX || (what == KIND_PARTS && is_awaited(s->store, file))) return;
    s->orphans++;
    if (s->on_problem != NULL) {
        char line[128];
        (void)snprintf(line, sizeof line, "chunk file %02x/%.32s has no entry in the index", folder, name);
        s->on_problem(s->user, line);
    }
    if (!s->remove) return;
    if (what == KIND_CHUNK || what == KIND_TMP) {
        (void)unlinkat(folder_fd, name, 0);
    } else if (what == KIND_PARTS) {
        (void)remove_parts(s->store, file);
    } else {
        char gone[NAME_BYTES];
        name_of(file, ENDING_GONE, gone);
        (void)remove_folder(s->store, gone);
    }
}

static is_status sweep_folder(sweep *s, unsigned folder, is_error *err)
{
    int fd = open_folder(s->store, folder);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (entries == NULL) {
        is_status status = is_fail(err, IS_EIO, "cannot read %s/chunks/%02x: %s; check its permissions",
                                   s->store->folder, folder, strerror(errno));
        if (fd >= 0) (void)close(fd);
        return status;
    }
    const struct dirent *entry = NULL;
    while ((entry = readdir(entries)) != NULL) sweep_entry(s, fd, folder, entry->d_name);
    (void)closedir(entries);
    return IS_OK;
}

is_status is_files_sweep(is_store *store, const int64_t *files, size_t n, bool *seen, bool remove, uint64_t *orphans,
                         void (*on_problem)(void *user, const char *line), void *user, is_error *err)
{
    sweep s = {store, files, n, seen, remove, 0, on_problem, user};
    is_status status = IS_OK;
    for (unsigned i = 0; i < N_FOLDERS && status == IS_OK; i++) status = sweep_folder(&s, i, err);
    *orphans = s.orphans;
    return status;
}
