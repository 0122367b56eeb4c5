"""Which names of functions are participles or adjectives alone: they say how something is, not what the function does."""

IRREGULAR = frozenset(
    """
    begun bound broken built chosen done drawn driven fallen felt found frozen given gone grown heard
    held hidden hung kept known laid left lent lost made meant met paid ran said seen sent shown sold sought spent spoken stood
    stuck sunk sworn taken taught thought thrown told torn understood woken won worn written
    """.split()
)
ADJECTIVES = frozenset(
    """
    absent again alive alone apart big blank busy cheap clean clear cold complete dead deep direct dry due early empty equal exact
    fit flat free fresh full good hot idle large last late latest left light little live local lone long loose new next old open
    outer own plain private quick quiet ready rich right same short shy slow small sound spare stale still strange strict strong
    sure sweet together tidy tight tiny true urgent usual vacant whole wide young readable writable unreadable unknown missing
    here outside below within over around without
    """.split()
) - {"clean", "clear", "complete", "free", "live", "open"}  # these are imperatives too
VERBS_IN_ED = frozenset("embed exceed feed need proceed seed shed speed".split())


def is_participle(word: str) -> bool:
    if word in VERBS_IN_ED:
        return False
    return word.endswith("ed") or word in IRREGULAR or word in ADJECTIVES
