"""URLs that an attacker writes to reach an address that is not for them, however it is spelled.

Those of `list_metadata_urls` lead to a metadata service, those of `list_private_urls` to a private address, and those of
`list_api_urls` to the API of NoETL. Some are no URL at all: they must not connect anywhere either.
"""

from ipaddress import IPv4Address
from urllib.parse import quote

METADATA = IPv4Address("169.254.169.254")
# Names that the resolver of the test answers with these addresses, besides those that change.
FIXED_NAMES = {
    "metadata.test": ["169.254.169.254"],
    "metadata6.test": ["fd00:ec2::254"],
    "mapped.test": ["::ffff:169.254.169.254"],
    "nat64.test": ["64:ff9b::a9fe:a9fe"],
    "linklocal6.test": ["fe80::7"],
    "unspecified.test": ["0.0.0.0"],
    "unspecified6.test": ["::"],
    "both.test": ["93.184.216.34", "169.254.169.254"],
    "last.test": ["93.184.216.34", "93.184.216.35", "93.184.216.36", "169.254.169.254"],
    "mixed.test": ["93.184.216.34", "fd00:ec2::254"],
    "private.test": ["10.0.0.7"],
    "shared.test": ["100.64.0.7"],
    "unique.test": ["fd12::7"],
    "loopback.test": ["127.0.0.1"],
    "loopback6.test": ["::1"],
    "halfprivate.test": ["93.184.216.34", "10.0.0.7"],
    "localhost": ["127.0.0.1"],
    "public.test": ["93.184.216.34"],
    "169.254.169.254.nip.test": ["169.254.169.254"],
    "api.noetl.test": ["127.0.0.1"],
    "sneaky.test": ["127.0.0.1"],
}


def spell_ipv4(address: IPv4Address) -> list[str]:
    """Hosts that resolvers read as this address, and some that they should not."""
    number, (a, b, c, d) = int(address), address.packed
    plain = str(address)
    return [
        plain, str(number), hex(number), f"0X{number:X}", f"0x{number:016x}", f"0{number:o}", f"00000{number:o}",
        str(number + 2**32), f"{a}.{b}.{c << 8 | d}", f"{a}.{b << 16 | c << 8 | d}", f"0x{a:x}.{b}.{c}.{d}",
        f"0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}", f"0x{a:02X}.0x{b:02X}.0x{c:02X}.0x{d:02X}", f"0x0000{a:x}.{b}.{c}.{d}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"0{a:o}.{b}.{c}.{d}", f"0000{a:o}.0000{b:o}.0000{c:o}.0000{d:o}",
        f"{a}.0{b:o}.0x{c:x}.{d}", f"0x{a:x}.0{b:o}.{c << 8 | d}", f"{a}.0x{b:x}{c:02x}{d:02x}", f"{a}.{b}.0x{c << 8 | d:x}",
        f"{plain}.", f"{number}.", f"{hex(number)}.", f"{plain}..", f".{plain}", f" {plain}", f"{plain} ", f"{plain}\t",
        f"{a:03}.{b:03}.{c:03}.{d:03}", f"{a}.{b}.{c}.{d + 256}", f"{a + 256}.{b}.{c}.{d}", f"+{plain}", f"{plain}%00",
        quote(plain).replace(".", "%2e"), "".join(f"%{ord(letter):02x}" for letter in plain), f"{plain}%2f", f"{plain}%23",
        # digits and dots of other scripts
        "".join(chr(0xFF10 + int(letter)) if letter.isdigit() else letter for letter in plain),
        "".join(chr(0xFF10 + int(letter)) if letter.isdigit() else "\uff0e" for letter in plain),
        plain.replace(".", "\u3002"), plain.replace(".", "\uff61"), plain.replace(".", "\uff0e"), plain.replace(".", "\u2024"),
        "".join({"0": "\u24ea"}.get(letter, chr(0x245F + int(letter)) if letter.isdigit() else letter) for letter in plain),
        "".join(chr(0x0660 + int(letter)) if letter.isdigit() else letter for letter in plain),
        "".join(chr(0x0966 + int(letter)) if letter.isdigit() else letter for letter in plain),
        "".join(chr(0x1D7CE + int(letter)) if letter.isdigit() else letter for letter in plain),
        plain.translate(str.maketrans("12", "\u00b9\u00b2")),
    ]  # fmt: skip


def spell_ipv6(address: IPv4Address) -> list[str]:
    """Literals in brackets that have this IPv4 address in them."""
    number, plain = int(address), str(address)
    high, low = f"{number >> 16:x}", f"{number & 0xFFFF:x}"
    flipped = number ^ 0xFFFF_FFFF
    bodies = [
        f"::ffff:{plain}", f"::ffff:{high}:{low}", f"::FFFF:{high.upper()}:{low.upper()}", f"0:0:0:0:0:ffff:{plain}",
        f"0000:0000:0000:0000:0000:ffff:{high}:{low}", f"0::ffff:{plain}", f"::ffff:0:{plain}", f"::ffff:0:{high}:{low}",
        f"::{plain}", f"::{high}:{low}", f"0:0:0:0:0:0:{plain}", f"64:ff9b::{plain}", f"64:ff9b::{high}:{low}",
        f"64:ff9b:0:0:0:0:{plain}", f"64:ff9b:1::{plain}", f"64:ff9b:1:{high}:{low[:-2] or '0'}:{low[-2:]}00::",
        f"2002:{high}:{low}::", f"2002:{high}:{low}::1", f"2001:0:{high}:{low}::",
        f"2001:0:808:808:0:0:{flipped >> 16:x}:{flipped & 0xFFFF:x}", f"2606:4700::5efe:{plain}", f"fe80::5efe:{plain}",
        f"2606:4700::200:5efe:{plain}", f"::ffff:{plain}%25lo", f"::ffff:{plain}%lo", f"::ffff:{high}:{low}%1",
    ]  # fmt: skip
    return [f"[{body}]" for body in bodies]


OTHER_METADATA_HOSTS = [
    "[fd00:ec2::254]", "[fd00:0ec2:0000:0000:0000:0000:0000:0254]", "[FD00:EC2:0:0:0:0:0:254]", "[fd00:ec2::0.0.2.84]",
    "[fd00:ec2::254%25lo]", "[fd00:ec2::254%lo]", "[fd00:ec2::254%1]", "[fd00:ec2::23]", "[fd20:ce::254]",
    "[fe80::7]", "[fe80::7%25lo]", "[fe80::7%lo]", "[fe80::7%1]", "[fe80::7%251]", "[fe80:0:0:0:0:0:0:7%25lo]", "[febf::7%25lo]",
    "169.254.170.2", "169.254.0.1", "169.254.255.254", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "0.0.0.0", "0", "0x0", "00", "0.0", "0.0.0.1", "[::]", "[::0]", "[0:0:0:0:0:0:0:0]", "[::ffff:0.0.0.0]", "[::ffff:0:0]",
    "224.0.0.1", "239.255.255.250", "[ff02::1]", "[ff02::1%25lo]", "[ff01::1]", "255.255.255.255", "4294967295", "0xffffffff",
    "metadata.test", "METADATA.test", "metadata.test.", "mEtAdAtA.tEsT", "metadata6.test", "mapped.test", "nat64.test",
    "linklocal6.test", "unspecified.test", "unspecified6.test", "both.test", "last.test", "mixed.test",
    "169.254.169.254.nip.test", "metadata%2etest", "\uff4d\uff45\uff54\uff41data.test", "metadata\u3002test",
]  # fmt: skip

# Whole URLs that disagree about what their host is.
CONFUSING_URLS = [
    "http://public.test@169.254.169.254/", "http://public.test:80@169.254.169.254/", "http://a:b@c:d@169.254.169.254/",
    "http://public.test%40169.254.169.254/", "http://169.254.169.254#@public.test/", "http://169.254.169.254?@public.test/",
    "http://169.254.169.254\\@public.test/", "http://public.test\\@169.254.169.254/", "http://169.254.169.254;@public.test/",
    "http:\\\\169.254.169.254\\", "http:/169.254.169.254/", "http:169.254.169.254", "http:///169.254.169.254/",
    "//169.254.169.254/",
    "http:////169.254.169.254/", "HTTP://169.254.169.254/", "hTtP://169.254.169.254", "http://169.254.169.254:80/",
    "http://169.254.169.254:0080/", "http://169.254.169.254:00000080/", "http://169.254.169.254:/", "http://169.254.169.254:80:80/",
    "http://169.254.169.254:+80/", "http://169.254.169.254:80@public.test:80@metadata.test/", " http://169.254.169.254/",
    "\thttp://169.254.169.254/", "http://169.254.169.254/\n", "http://169.254.169.254/\r\nHost: public.test", "http\n://169.254.169.254/",
    "http://[169.254.169.254]/", "http://[::ffff:169.254.169.254]:80/", "http://[[::ffff:169.254.169.254]]/", "http://::ffff:169.254.169.254/",
    "http://[::ffff:169.254.169.254/", "http://@169.254.169.254/", "http://:@169.254.169.254/", "http://:80@169.254.169.254/",
    "http://%31%36%39.254.169.254/", "http://169.254.169.254%20/", "http://169.254.169.254%09/", "http://public.test%00.169.254.169.254/",
    "http://public.test/../../169.254.169.254/", "http://public.test\u2044@169.254.169.254/", "http://169.254.169.254\u2215x/",
    "ftp://169.254.169.254/", "file://169.254.169.254/etc/passwd", "gopher://169.254.169.254:80/_GET", "ws://169.254.169.254/",
    "unix://169.254.169.254/", "dict://169.254.169.254:80/", "jar:http://169.254.169.254/!/", "http+unix://169.254.169.254/",
]  # fmt: skip


def list_metadata_urls() -> list[str]:
    hosts = [*spell_ipv4(METADATA), *spell_ipv6(METADATA), *OTHER_METADATA_HOSTS]
    return [*(f"http://{host}/latest" for host in hosts), *CONFUSING_URLS]


def list_private_urls() -> list[str]:
    hosts = ["127.0.0.1", "127.1", "127.0.0.2", "0x7f000001", "2130706433", "017700000001", "localhost", "[::1]",
             "[0:0:0:0:0:0:0:1]", "[::1%25lo]", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "10.0.0.7",
             "0x0a000007", "10.7", "[::ffff:10.0.0.7]", "[2002:a00:7::1]", "100.64.0.7", "192.168.7.7", "172.16.7.7", "[fd12::7]",
             "[fd12::7%25lo]", "private.test", "shared.test", "unique.test", "loopback.test", "loopback6.test",
             "halfprivate.test", "198.18.0.7", "[fec0::7]"]  # fmt: skip
    return [f"http://{host}/" for host in hosts]


def list_api_urls() -> list[str]:
    """The API listens at port 8082 of every address of the machine."""
    hosts = ["127.0.0.1", "127.1", "127.0.0.2", "127.254.254.254", "0x7f000001", "2130706433", "017700000001", "0x7f.0.0.1",
             "localhost", "LOCALHOST", "localhost.", "[::1]", "[0:0:0:0:0:0:0:1]", "[::1%25lo]", "[::ffff:127.0.0.1]",
             "[::ffff:7f00:1]", "10.0.0.7", "0x0a000007", "[::ffff:10.0.0.7]", "100.64.0.7", "[fd12::7]", "loopback.test",
             "loopback6.test", "private.test", "api.noetl.test", "API.noetl.test.", "sneaky.test", "user@127.0.0.1",
             "93.184.216.34", "public.test"]  # fmt: skip
    return [f"http://{host}:8082/api/worker/credentials/apitoken" for host in hosts]
