"""`demo://shop`: an API inside the http tool, so that examples and first steps need no server.

    demo://shop/orders?page=1&size=500     order_id, customer_id, product, quantity, amount; a few amounts are missing
    demo://shop/customers                  customer_id, name, country

A page is `{data: […], paging: {page, pages, has_more}}`. Its contents never change.
"""

import json
from typing import Any

import httpx

DEMO_SCHEME = "demo"
ORDER_COUNT, CUSTOMER_COUNT = 5_000, 200
MAX_PAGE_SIZE = 1_000
COUNTRIES = ("Austria", "Brazil", "Chad", "Denmark", "Egypt")
PRODUCTS = ("tea", "lamp", "chair", "atlas", "kettle", "radio", "scarf")


class DemoTransport(httpx.AsyncBaseTransport):
    """Answers requests in place of a connection."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        status, answer = _answer_request(request.url)
        body = json.dumps(answer).encode()
        headers = {"Content-Type": "application/json"}
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))


def _answer_request(url: httpx.URL) -> tuple[int, dict[str, Any]]:
    resources = {
        "/orders": (_make_order, ORDER_COUNT),
        "/customers": (_make_customer, CUSTOMER_COUNT),
    }
    resource = resources.get(url.path)
    if url.host != "shop" or resource is None:
        message = f"there are demo://shop/orders and demo://shop/customers, and no {url}"
        return 404, {"message": message}
    try:
        page = int(url.params.get("page", 1))
        size = int(url.params.get("size", MAX_PAGE_SIZE))
    except ValueError:
        return 400, {"message": "page and size are numbers"}
    if page < 1 or not 1 <= size <= MAX_PAGE_SIZE:
        return 400, {"message": f"page counts from 1, and size is at most {MAX_PAGE_SIZE}"}
    make_record, total = resource
    pages = -(-total // size)  # rounded up
    first = (page - 1) * size + 1
    last = min(page * size, total)
    records = [make_record(number) for number in range(first, last + 1)]
    paging = {"page": page, "pages": pages, "has_more": page < pages}
    return 200, {"data": records, "paging": paging}


def _make_order(number: int) -> dict[str, Any]:
    customer = 1 + number * 89 % 211 % CUSTOMER_COUNT
    product = number * 31 % 97 % (3 + customer % len(COUNTRIES))
    quantity = 1 + (number + customer) % 4
    amount = quantity * (5 + 3 * product)
    return {
        "order_id": number,
        "customer_id": customer,
        "product": PRODUCTS[product],
        "quantity": quantity,
        "amount": None if number % 997 == 0 else amount,
    }


def _make_customer(number: int) -> dict[str, Any]:
    return {
        "customer_id": number,
        "name": f"Customer {number}",
        "country": COUNTRIES[number % len(COUNTRIES)],
    }
